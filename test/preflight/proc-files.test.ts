import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { countIpvsServices, readInterfaces, readListeners } from '../../preflight/proc-files.ts';

describe('preflight: files of /proc', () => {
  for (const host of ['127.0.0.1', '0.0.0.0', '::1', '::']) {
    it(`finds a listener on ${host}`, async () => {
      const server = createServer().listen(0, host);
      await once(server, 'listening');
      const { port } = server.address() as AddressInfo;
      const file = host.includes(':') ? '/proc/self/net/tcp6' : '/proc/self/net/tcp';
      const found = readListeners(readFileSync(file, 'utf8'));
      server.close();
      assert.deepEqual(
        found.filter((each) => each.port === port),
        [{ host, port }],
      );
    });
  }

  it('reads IPv4-mapped addresses as IPv4, and ignores connections', () => {
    const line = (local: string, state: string) =>
      `   0: ${local} 00:0000 ${state} 0:0 00:0 0 0 0 1`;
    const content = [
      '  sl  local_address rem_address   st tx_queue',
      line('0000000000000000FFFF00000100007F:2811', '0A'),
      line('0100007F:2811', '01'),
    ];
    assert.deepEqual(readListeners(content.join('\n')), [{ host: '127.0.0.1', port: 10_257 }]);
  });

  it('reads interfaces', () => {
    const content = 'Inter-|   Receive\n face |bytes\n    lo: 0 0\neth0.5:  1 2\n';
    assert.deepEqual(readInterfaces(content), ['lo', 'eth0.5']);
  });

  it('counts IPVS services', () => {
    const content =
      'IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n' +
      '  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\nTCP  0A60000A:0050 rr\n' +
      '  -> 0AF40105:1F90      Masq    1      0          0\nFWM  00001002 rr\n';
    assert.equal(countIpvsServices(content), 2);
    assert.equal(countIpvsServices(''), 0);
  });
});
