/** Tests the IPVS client against a real kernel; ipvsadm reads the table independently. */
import assert from 'node:assert/strict';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { execa } from 'execa';
import {
  Ipvs,
  type IpvsChange,
  IpvsMissingError,
  type IpvsService,
  type IpvsServiceKey,
} from '../../../netlink/ipvs/ipvs.ts';
import { PATIENCE, waitFor } from '../../lab/lab.ts';
import {
  addressKey,
  destinationOf,
  formatRefusal,
  ipvsadmSave,
  mark4,
  mark6,
  rr,
  sorted,
  tcp4,
  udp6,
} from '../ipvs-table.ts';

const MODPROBE = '/proc/sys/kernel/modprobe';

/** Not one of `keys`, because ipvsadm parses it as -1. */
const highMark: IpvsServiceKey = { family: 'IPv6', kind: 'mark', mark: 0xffffffff };
const keys = [tcp4, udp6, mark4, mark6];

describe('IPVS over netlink', () => {
  let ipvs: Ipvs;

  beforeEach(async () => {
    ipvs = await Ipvs.open();
  });
  afterEach(async () => {
    await ipvs.close();
    await execa('ipvsadm', ['-C']);
  });

  it('adds services of every kind', async () => {
    await applyAll([
      { op: 'add-service', key: tcp4, config: rr },
      { op: 'add-service', key: addressKey('IPv4', 'SCTP', '10.96.0.10', 80), config: rr },
      { op: 'add-service', key: udp6, config: { ...rr, scheduler: 'wrr' } },
      { op: 'add-service', key: mark4, config: { ...rr, persistenceSeconds: 10_800 } },
      { op: 'add-service', key: mark6, config: { ...rr, persistenceSeconds: 60 } },
      {
        op: 'add-service',
        key: addressKey('IPv4', 'UDP', '10.96.0.11', 53),
        config: { scheduler: 'mh', schedulerFlags: 0x18, persistenceSeconds: 0 },
      },
    ]);
    assert.deepEqual(await ipvsadmSave(), [
      '-A --sctp-service 10.96.0.10:80 -s rr',
      '-A -f 16391 -s rr -p 10800',
      '-A -f 7 -6 -s rr -p 60',
      '-A -t 10.96.0.10:80 -s rr',
      '-A -u 10.96.0.11:53 -s mh -b mh-fallback,mh-port',
      '-A -u [fd00::10]:53 -s wrr',
    ]);
  });

  it('lists its services by family', async () => {
    const services: IpvsService[] = [...keys, highMark].map((key, index) => ({
      key,
      scheduler: 'mh',
      schedulerFlags: 8,
      persistenceSeconds: index * 100,
    }));
    await applyAll(services.map(({ key, ...config }) => ({ op: 'add-service', key, config })));
    for (const family of ['IPv4', 'IPv6'] as const) {
      assert.deepEqual(
        sorted(await ipvs.services(family)),
        sorted(services.filter(({ key }) => key.family === family)),
      );
    }
  });

  it('replaces the whole configuration of an edited service', async () => {
    const before = { scheduler: 'mh', schedulerFlags: 8, persistenceSeconds: 300 };
    for (const key of keys) {
      await applyAll([
        { op: 'add-service', key, config: before },
        { op: 'add-destination', key, destination: destinationOf(key, 1) },
        { op: 'edit-service', key, config: { ...rr, scheduler: 'wrr' } },
      ]);
      assert.equal((await ipvs.destinations(key)).length, 1);
    }
    for (const { key, ...config } of await listed()) {
      assert.deepEqual(config, { ...rr, scheduler: 'wrr' }, JSON.stringify(key));
    }
    const services = (await ipvsadmSave()).filter((line) => line.startsWith('-A'));
    assert.ok(services.every((line) => line.endsWith('-s wrr')));
  });

  it('deletes a service with its destinations', async () => {
    for (const key of keys) {
      await applyAll([
        { op: 'add-service', key, config: rr },
        { op: 'add-destination', key, destination: destinationOf(key, 1) },
      ]);
    }
    await applyAll(keys.map((key) => ({ op: 'delete-service', key })));
    assert.deepEqual(await ipvsadmSave(), []);
    assert.deepEqual(await listed(), []);
  });

  it('adds, edits and deletes masqueraded destinations', async () => {
    for (const key of keys) {
      const [first, second, third] = [1, 2, 3].map((index) => destinationOf(key, index));
      assert.ok(first && second && third);
      await applyAll([
        { op: 'add-service', key, config: rr },
        { op: 'add-destination', key, destination: first },
        { op: 'add-destination', key, destination: second },
        { op: 'add-destination', key, destination: third },
        { op: 'edit-destination', key, destination: { ...second, weight: 0 } },
        { op: 'delete-destination', key, destination: third },
      ]);
      const idle = {
        masquerade: true,
        activeConnections: 0,
        inactiveConnections: 0,
        persistentConnections: 0,
      };
      assert.deepEqual(await ipvs.destinations(key), [
        { ...second, weight: 0, ...idle },
        { ...first, ...idle },
      ]);
    }
    assert.deepEqual(
      (await ipvsadmSave()).filter((line) => line.startsWith('-a')),
      [
        '-a -f 16391 -r 10.1.0.1:0 -m -w 1',
        '-a -f 16391 -r 10.1.0.2:0 -m -w 0',
        '-a -f 7 -6 -r [fd01::1]:0 -m -w 1',
        '-a -f 7 -6 -r [fd01::2]:0 -m -w 0',
        '-a -t 10.96.0.10:80 -r 10.1.0.1:8080 -m -w 1',
        '-a -t 10.96.0.10:80 -r 10.1.0.2:8080 -m -w 0',
        '-a -u [fd00::10]:53 -r [fd01::1]:8080 -m -w 1',
        '-a -u [fd00::10]:53 -r [fd01::2]:8080 -m -w 0',
      ],
    );
  });

  it('continues after a refused change, and reports the error', async () => {
    const destination = destinationOf(tcp4, 1);
    const missing = destinationOf(tcp4, 9);
    const add: IpvsChange = { op: 'add-service', key: tcp4, config: rr };
    const addDestination: IpvsChange = { op: 'add-destination', key: tcp4, destination };
    const refusals = await ipvs.apply([
      add,
      add,
      addDestination,
      addDestination,
      { op: 'edit-destination', key: tcp4, destination: missing },
      { op: 'delete-destination', key: tcp4, destination: missing },
      { op: 'edit-service', key: udp6, config: rr },
      { op: 'delete-service', key: udp6 },
      { op: 'add-destination', key: udp6, destination: destinationOf(udp6, 1) },
      { op: 'edit-destination', key: udp6, destination: destinationOf(udp6, 1) },
      { op: 'delete-destination', key: udp6, destination: destinationOf(udp6, 1) },
      { op: 'add-service', key: mark4, config: rr },
      { op: 'delete-service', key: mark6 },
    ]);
    assert.deepEqual(refusals.map(formatRefusal), [
      'add-service: EEXIST',
      'add-destination: EEXIST',
      'edit-destination: ENOENT',
      'delete-destination: ENOENT',
      'edit-service: ESRCH',
      'delete-service: ESRCH',
      'add-destination: ESRCH',
      'edit-destination: ESRCH',
      'delete-destination: ESRCH',
      'delete-service: ESRCH',
    ]);
    assert.equal(refusals[0]?.change, add);
    assert.deepEqual(await ipvsadmSave(), [
      '-A -f 16391 -s rr',
      '-A -t 10.96.0.10:80 -s rr',
      '-a -t 10.96.0.10:80 -r 10.1.0.1:8080 -m -w 1',
    ]);
  });

  it('reports a scheduler that the kernel lacks', async () => {
    const config = { ...rr, scheduler: 'nosuch' };
    const refusals = await ipvs.apply([
      { op: 'add-service', key: tcp4, config },
      { op: 'add-service', key: mark4, config: rr },
      { op: 'edit-service', key: mark4, config },
      { op: 'add-service', key: mark6, config: { ...rr, scheduler: 'a-name-of-over-15' } },
    ]);
    assert.deepEqual(refusals.map(formatRefusal), [
      'add-service: ENOENT',
      'edit-service: ENOENT',
      'add-service: EINVAL',
    ]);
    assert.deepEqual(await ipvsadmSave(), ['-A -f 16391 -s rr']);
  });

  it('reports destinations that cannot be reached', async () => {
    await applyAll([
      { op: 'add-service', key: tcp4, config: rr },
      { op: 'add-service', key: udp6, config: rr },
    ]);
    const refusals = await ipvs.apply([
      add(tcp4, '255.255.255.255'),
      add(tcp4, '224.0.0.1'),
      add(udp6, 'ff02::1'),
      add(udp6, 'fe80::1'),
    ]);
    assert.deepEqual(
      refusals.map(({ error }) => error.code),
      ['EINVAL', 'EINVAL', 'EINVAL', 'EINVAL'],
    );

    function add(key: IpvsServiceKey, address: string): IpvsChange {
      return { op: 'add-destination', key, destination: { address, port: 80, weight: 1 } };
    }
  });

  it('lists no destinations of a service that does not exist', async () => {
    for (const key of keys) assert.deepEqual(await ipvs.destinations(key), []);
  });

  it('counts connections of IPVS destinations', async () => {
    const key = addressKey('IPv4', 'UDP', '10.96.0.53', 53);
    const addresses = ['10.96.0.53/32', '10.1.0.53/32'];
    for (const address of addresses) await execa('ip', ['address', 'add', address, 'dev', 'lo']);
    const client = createSocket('udp4');
    try {
      await applyAll([
        { op: 'add-service', key, config: { ...rr, persistenceSeconds: 60 } },
        { op: 'add-destination', key, destination: { address: '10.1.0.53', port: 53, weight: 1 } },
      ]);
      client.send('x', 53, '10.96.0.53');
      const state = await waitFor('the connection is counted', async () =>
        (await ipvs.destinations(key)).find(({ inactiveConnections }) => inactiveConnections > 0),
      );
      assert.deepEqual(state, {
        address: '10.1.0.53',
        port: 53,
        weight: 1,
        masquerade: true,
        activeConnections: 0,
        inactiveConnections: 1,
        persistentConnections: 1,
      });
    } finally {
      client.close();
      await once(client, 'close');
      for (const address of addresses) await execa('ip', ['address', 'del', address, 'dev', 'lo']);
    }
  });

  it('lists IPVS services of other programs', async () => {
    await execa('ipvsadm', ['--restore'], {
      input: [
        '-A -t 10.96.1.1:80 -s wlc -p 120 -M 255.255.255.0',
        '-a -t 10.96.1.1:80 -r 10.1.0.1:80 -g -w 5',
        '-a -t 10.96.1.1:80 -r 10.1.0.2:81 -i -w 6',
        '-a -t 10.96.1.1:80 -r 10.1.0.3:82 -m -w 7 -x 100 -y 50',
        '-A -u 10.96.1.1:53 -s rr -o',
        '-A -u 10.96.1.1:5060 -s rr -p 60 --pe sip',
        '-A -t [fd00::1]:80 -s rr -p 90 -M 64',
        '-a -t [fd00::1]:80 -r [fd01::1]:80 -g',
        '-A -t 10.96.1.2:0 -s rr -p 360',
        '',
      ].join('\n'),
    });
    const foreign = addressKey('IPv4', 'TCP', '10.96.1.1', 80);
    assert.deepEqual(
      sorted(await listed()),
      sorted<IpvsService>([
        { key: foreign, scheduler: 'wlc', schedulerFlags: 0, persistenceSeconds: 120 },
        { key: addressKey('IPv4', 'UDP', '10.96.1.1', 53), ...rr, schedulerFlags: 4 },
        { key: addressKey('IPv4', 'UDP', '10.96.1.1', 5060), ...rr, persistenceSeconds: 60 },
        { key: addressKey('IPv6', 'TCP', 'fd00::1', 80), ...rr, persistenceSeconds: 90 },
        { key: addressKey('IPv4', 'TCP', '10.96.1.2', 0), ...rr, persistenceSeconds: 360 },
      ]),
    );
    assert.deepEqual(
      (await ipvs.destinations(foreign)).map(({ address, port, weight, masquerade }) => [
        `${address}:${port}`,
        weight,
        masquerade,
      ]),
      [
        ['10.1.0.3:82', 7, true],
        ['10.1.0.2:80', 6, false],
        ['10.1.0.1:80', 5, false],
      ],
    );
  });

  it('changes IPVS services of other programs to the desired configuration', async () => {
    await execa('ipvsadm', ['--restore'], {
      input: [
        '-A -t 10.96.0.10:80 -s wlc -p 120 -M 255.255.255.0',
        '-a -t 10.96.0.10:80 -r 10.1.0.1:80 -g -w 5 -x 100 -y 50',
        '-A -f 16391 -s rr -o',
        '',
      ].join('\n'),
    });
    await applyAll([
      { op: 'edit-service', key: tcp4, config: { ...rr, persistenceSeconds: 60 } },
      {
        op: 'edit-destination',
        key: tcp4,
        destination: { address: '10.1.0.1', port: 80, weight: 1 },
      },
      { op: 'edit-service', key: mark4, config: rr },
    ]);
    assert.deepEqual(await ipvsadmSave(), [
      '-A -f 16391 -s rr',
      '-A -t 10.96.0.10:80 -s rr -p 60',
      '-a -t 10.96.0.10:80 -r 10.1.0.1:80 -m -w 1',
    ]);
  });

  it('makes thousands of changes in one call without blocking the event loop', async () => {
    const services = [...Array(2000).keys()].map((index): IpvsService => {
      const key = addressKey(
        index % 2 === 0 ? 'IPv4' : 'IPv6',
        index % 3 === 0 ? 'TCP' : 'UDP',
        index % 2 === 0 ? `10.97.${index >> 8}.${index & 255}` : `fd00:97::${index.toString(16)}`,
        1000 + index,
      );
      return { key, ...rr, persistenceSeconds: index % 5 };
    });
    const changes = services.flatMap(({ key, ...config }): IpvsChange[] => [
      { op: 'add-service', key, config },
      ...[1, 2, 3].map((index): IpvsChange => {
        return { op: 'add-destination', key, destination: destinationOf(key, index) };
      }),
    ]);

    let turns = 0;
    const turning = setInterval(() => turns++, 1);
    await applyAll(changes);
    clearInterval(turning);
    assert.ok(turns >= changes.length / 500, `${turns}`);

    assert.deepEqual(sorted(await listed()), sorted(services));
    for (const { key } of services) {
      const found = await ipvs.destinations(key);
      assert.deepEqual(
        found.map(({ address, port, weight }) => ({ address, port, weight })).reverse(),
        [1, 2, 3].map((index) => destinationOf(key, index)),
      );
    }
    const witnessed = await ipvsadmSave();
    assert.equal(witnessed.filter((line) => line.startsWith('-A')).length, 2000);
    assert.equal(witnessed.filter((line) => line.startsWith('-a')).length, 6000);

    const refusals = await ipvs.apply(changes);
    assert.deepEqual(
      refusals.map(({ change }) => change),
      changes,
    );
    assert.ok(refusals.every(({ error }) => error.code === 'EEXIST'));
  }).timeout(180_000 * PATIENCE);

  it('sets IPVS timeouts', async () => {
    const timeouts = async () => (await execa('ipvsadm', ['-L', '--timeout'])).stdout;
    const [, tcp, tcpFin, udp] = (/: (\d+) (\d+) (\d+)$/.exec(await timeouts()) ?? []).map(Number);
    assert.ok(tcp !== undefined && tcpFin !== undefined && udp !== undefined);
    try {
      await ipvs.setTimeouts({ tcp: 1000, tcpFin: 130, udp: 310 });
      await ipvs.setTimeouts({ tcp: 0, tcpFin: 0, udp: 320 });
      assert.equal(await timeouts(), 'Timeout (tcp tcpfin udp): 1000 130 320');
      await assert.rejects(ipvs.setTimeouts({ tcp: 2 ** 31, tcpFin: 0, udp: 0 }), {
        code: 'EINVAL',
      });
    } finally {
      await ipvs.setTimeouts({ tcp, tcpFin, udp });
    }
  });

  it('fails pending calls when the socket is closed', async () => {
    const listing = assert.rejects(ipvs.services('IPv4'), { code: 'ECANCELED' });
    await ipvs.close();
    await listing;
    await assert.rejects(ipvs.apply([{ op: 'delete-service', key: tcp4 }]), { code: 'ECANCELED' });
  });

  describe('when its module is unloaded', () => {
    let modprobe: string;

    beforeEach(async () => {
      modprobe = await readFile(MODPROBE, 'utf8');
      const modules = await readFile('/proc/modules', 'utf8');
      const users = [...modules.matchAll(/^ip_vs_\w+/gm)].map(([name]) => name);
      await execa('modprobe', ['--remove', ...users, 'ip_vs']);
    });
    afterEach(() => writeFile(MODPROBE, modprobe));

    it('reports an IPVS module that cannot be loaded', async () => {
      await writeFile(MODPROBE, '/bin/false');
      await assert.rejects(Ipvs.open(), IpvsMissingError);
    });

    it('loads the IPVS module again when the socket is opened again', async () => {
      await (await Ipvs.open()).close();
      await assert.rejects(ipvs.services('IPv4'), { code: 'ENOENT' });
      assert.deepEqual(
        (await ipvs.apply([{ op: 'add-service', key: tcp4, config: rr }])).map(formatRefusal),
        ['add-service: ENOENT'],
      );
    });
  });

  async function applyAll(changes: readonly IpvsChange[]): Promise<void> {
    assert.deepEqual(await ipvs.apply(changes), []);
  }

  async function listed(): Promise<IpvsService[]> {
    return [...(await ipvs.services('IPv4')), ...(await ipvs.services('IPv6'))];
  }
});
