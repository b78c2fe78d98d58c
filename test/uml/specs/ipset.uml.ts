import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { execa } from 'execa';
import type { IpFamily } from '../../../api/objects.ts';
import { type IpsetEntry, Ipsets, type IpsetType } from '../../../netlink/ipset/ipset.ts';
import { entryText, savedEntries } from '../../netlink/ipset-save.ts';

const MODPROBE = '/proc/sys/kernel/modprobe';
const NAME = 'pw';

/** Cases that test/netlink/ipset/ipset.lab.test.ts cannot test. */
const types: readonly {
  type: IpsetType;
  /** Of Linux 6.1. Linux 6.12 has revision 4 of hash:net,net, with bit masks. */
  revision: number;
  entries: Record<IpFamily, IpsetEntry[]>;
}[] = [
  {
    type: 'hash:net,net',
    revision: 3,
    entries: {
      IPv4: [
        { ip: '10.0.0.0/8', ip2: '192.0.2.1/32' },
        { ip: '0.0.0.0/1', ip2: '128.0.0.0/1' },
      ],
      IPv6: [
        { ip: 'fd00::/8', ip2: '2001:db8::1/128' },
        { ip: '::/1', ip2: '8000::/1' },
      ],
    },
  },
  {
    type: 'hash:ip,mark',
    revision: 3,
    entries: {
      IPv4: [
        { ip: '10.0.0.1', mark: 1 },
        { ip: '10.0.0.1', mark: 0xffffffff },
      ],
      IPv6: [
        { ip: 'fd00::1', mark: 1 },
        { ip: 'fd00::1', mark: 0x4000 },
      ],
    },
  },
];

/** Runs in a kernel of its own, in the namespace of its pid 1. */
describe('ipset', () => {
  let sets: Ipsets;

  it('fails to open ipset without kernel support', async () => {
    await execa('modprobe', ['nfnetlink']);
    const modules =
      readFileSync('/proc/modules', 'utf8').match(/^(xt_set|ip_set_\w+)(?= )/gmu) ?? [];
    await execa('modprobe', ['-r', '-a', ...modules, 'ip_set']);
    const modprobe = readFileSync(MODPROBE, 'utf8');
    writeFileSync(MODPROBE, '/bin/false');
    try {
      await assert.rejects(Ipsets.open(), {
        name: 'UnsupportedError',
        message: 'the kernel has no ipset',
        feature: 'ipset',
      });
    } finally {
      writeFileSync(MODPROBE, modprobe);
    }
  });

  it('loads ipset modules, and reports a missing set type', async () => {
    sets = await Ipsets.open();
    const modprobe = readFileSync(MODPROBE, 'utf8');
    writeFileSync(MODPROBE, '/bin/false');
    try {
      const spec = { name: NAME, type: 'hash:ip', skbinfo: false, maxElements: 9 } as const;
      await assert.rejects(sets.create({ ...spec, family: 'IPv4' }), {
        name: 'UnsupportedError',
        message: 'the kernel has no ipset type hash:ip',
      });
    } finally {
      writeFileSync(MODPROBE, modprobe);
      await sets.close();
    }
  });

  describe('when opened', () => {
    beforeEach(async () => {
      sets = await Ipsets.open();
    });
    afterEach(async () => {
      await sets.close();
      await execa('ipset', ['destroy']);
    });

    for (const { type, revision, entries } of types) {
      for (const family of ['IPv4', 'IPv6'] as const) {
        it(`${type} of ${family}: adds and lists entries`, async () => {
          const marked = entries[family].map((entry, index) => ({ ...entry, skbMark: index }));
          const texts = marked.map(entryText).sort();
          await sets.create({ name: NAME, type, family, skbinfo: true, maxElements: 100 });
          const add = (list: readonly IpsetEntry[]) =>
            sets.change(list.map((entry) => ({ op: 'add', set: NAME, entry })));
          assert.deepEqual(await add(marked), []);
          assert.deepEqual(await saved(), texts);
          const listed = await sets.entries(NAME);
          assert.deepEqual(listed.map(entryText).sort(), texts);
          assert.deepEqual(
            new Set(listed.map(({ ip }) => ip)),
            new Set(marked.map(({ ip }) => ip)),
          );
          const [first, ...others] = listed;
          assert(first !== undefined);
          await sets.change(others.map((entry) => ({ op: 'delete', set: NAME, entry })));
          assert.deepEqual(await saved(), [entryText(first)]);
          const [header] = await sets.list();
          assert.ok((header?.revision ?? 0) >= revision, String(header?.revision));
        });
      }
    }

    it('rejects a network of prefix length 0', async () => {
      await execa('ipset', ['create', NAME, 'hash:net,net']);
      const all = execa('ipset', ['add', NAME, '0.0.0.0/0,10.0.0.0/8']);
      await assert.rejects(all, /CIDR/u);
    });
  });
});

async function saved(): Promise<string[]> {
  return savedEntries((await execa('ipset', ['save', NAME])).stdout, NAME);
}
