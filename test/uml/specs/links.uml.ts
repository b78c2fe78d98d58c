import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { execa } from 'execa';
import { canonicalAddress } from '../../../api/addresses.ts';
import {
  changeAddresses,
  createDummy,
  deleteLink,
  findLink,
} from '../../../netlink/route/links.ts';

const NAME = 'pw-dummy0';
const MODPROBE = '/proc/sys/kernel/modprobe';

interface IpLink {
  readonly ifindex: number;
  readonly flags: readonly string[];
  readonly linkinfo: { readonly info_kind: string };
  readonly addr_info: readonly IpAddress[];
}

interface IpAddress {
  readonly local: string;
  readonly prefixlen: number;
  readonly scope: string;
  readonly tentative?: boolean;
  readonly deprecated?: boolean;
}

/** Runs in user-mode-linux, in the namespace of its pid 1. */
describe('dummy link', () => {
  // Dummy devices are a module there, which is not loaded for an address.
  before(async () => void (await execa('modprobe', ['ipv6'])));
  afterEach(async () => void (await deleteLink(NAME)));

  it('reports a kernel without dummy interfaces', async () => {
    const modprobe = readFileSync(MODPROBE, 'utf8');
    await execa('modprobe', ['-r', 'dummy']);
    writeFileSync(MODPROBE, '/bin/false');
    try {
      await assert.rejects(createDummy(NAME), {
        name: 'UnsupportedError',
        message: 'the kernel has no dummy interfaces',
        feature: 'dummy interfaces',
      });
    } finally {
      writeFileSync(MODPROBE, modprobe);
    }
  });

  it('creates the dummy link down and without ARP, once', async () => {
    assert.equal(await findLink(NAME), undefined);
    const index = await createDummy(NAME);
    assert.equal(await findLink(NAME), index);
    const { ifindex, flags, linkinfo } = await ipLink();
    assert.equal(ifindex, index);
    assert.equal(linkinfo.info_kind, 'dummy');
    assert(flags.includes('NOARP') && !flags.includes('UP'), flags.join());
    await assert.rejects(createDummy(NAME), { name: 'NetlinkError', code: 'EEXIST' });
  });

  it('deletes the dummy link once', async () => {
    await createDummy(NAME);
    assert.equal(await deleteLink(NAME), true);
    assert.equal(await findLink(NAME), undefined);
    assert.equal(await deleteLink(NAME), false);
  });

  it('adds and removes hundreds of addresses of a dummy link', async () => {
    const index = await createDummy(NAME);
    const vips = Array.from({ length: 500 }, (_, number) =>
      number % 2 === 0 ? `10.96.${number >> 8}.${number & 255}` : address6(number),
    );
    assert.deepEqual(await changeAddresses(index, vips, []), []);
    assert.deepEqual(await addresses(), [...vips].sort());
    for (const { prefixlen, scope, local, tentative, deprecated } of (await ipLink()).addr_info) {
      assert.equal(prefixlen, local.includes(':') ? 128 : 32);
      assert.equal(scope, local.includes(':') ? 'global' : 'host');
      assert.equal(deprecated, local.includes(':') ? true : undefined);
      assert.equal(tentative, undefined);
    }

    assert.deepEqual(await changeAddresses(index, vips, ['10.0.0.1', 'fd00::ffff']), []);
    assert.deepEqual(await addresses(), [...vips].sort());

    const [removed, remaining] = [vips.slice(0, 300), vips.slice(300)];
    const more = ['192.0.2.1', '2001:db8::1'];
    for (let time = 0; time < 2; time++) {
      assert.deepEqual(await changeAddresses(index, more, removed), []);
      assert.deepEqual(await addresses(), [...remaining, ...more].sort());
    }
  });

  describe('with VIPs', () => {
    const [OWN, BARE] = ['pw-own0', 'pw-bare0'];
    afterEach(async () => {
      for (const name of [OWN, BARE]) await deleteLink(name);
    });

    it('does not use a VIP as source of packets that leave by a device without addresses', async () => {
      const index = await createDummy(NAME);
      await changeAddresses(index, ['10.96.0.1', 'fd00:10:96::1'], []);
      // The devices are created after the VIPs: IPv4 selects an address of the first device.
      await execa('ip', ['-batch', '-'], {
        input: [
          `link add ${OWN} up type dummy`,
          `address add 192.0.2.1/24 dev ${OWN}`,
          `address add 2001:db8::1/64 dev ${OWN} nodad`,
          `link add ${BARE} up type dummy`,
          `route add 10.244.0.0/16 dev ${BARE}`,
          `route add fd00:10:244::/48 dev ${BARE}`,
        ].join('\n'),
      });
      const sources = async () => [await sourceTo('10.244.0.1'), await sourceTo('fd00:10:244::1')];
      assert.deepEqual(await sources(), ['192.0.2.1', '2001:db8::1']);

      // The way kube-proxy binds them.
      await changeAddresses(index, [], ['10.96.0.1', 'fd00:10:96::1']);
      await execa('ip', ['address', 'add', '10.96.0.1/32', 'dev', NAME]);
      await execa('ip', ['address', 'add', 'fd00:10:96::1/128', 'dev', NAME, 'nodad']);
      assert.deepEqual(await sources(), ['10.96.0.1', 'fd00:10:96::1']);
      await changeAddresses(index, ['10.96.0.1', 'fd00:10:96::1'], []);
      assert.deepEqual(await sources(), ['192.0.2.1', '2001:db8::1']);
      assert.deepEqual(await addresses(), ['10.96.0.1', 'fd00:10:96::1']);
    });
  });

  it('makes the addresses of a dummy link local although the link is down', async () => {
    const index = await createDummy(NAME);
    assert.deepEqual(await changeAddresses(index, ['10.96.0.1', 'fd00:96::1'], []), []);
    for (const address of ['10.96.0.1', 'fd00:96::1']) {
      const { stdout } = await execa('ip', ['-j', 'route', 'get', address]);
      assert.equal(JSON.parse(stdout)[0].type, 'local', stdout);
    }
  });
});

/** The source address that the kernel selects. */
async function sourceTo(address: string): Promise<string> {
  const { stdout } = await execa('ip', ['-j', 'route', 'get', address]);
  return canonicalAddress(JSON.parse(stdout)[0].prefsrc) ?? stdout;
}

async function ipLink(): Promise<IpLink> {
  const { stdout } = await execa('ip', ['-j', '-d', 'address', 'show', 'dev', NAME]);
  return JSON.parse(stdout)[0];
}

async function addresses(): Promise<(string | undefined)[]> {
  return (await ipLink()).addr_info.map(({ local }) => canonicalAddress(local)).sort();
}

function address6(number: number): string {
  return `fd00::${number.toString(16)}`;
}
