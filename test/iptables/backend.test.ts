import assert from 'node:assert/strict';
import type { IpFamily } from '../../api/objects.ts';
import { baseOptions, type IptablesOptions, iptablesBackend } from '../../iptables/backend.ts';
import { IptablesError } from '../../iptables/commands.ts';
import { route } from '../fixtures.ts';
import { options } from './options.ts';
import { simulatedIptables } from './restore-simulator.ts';

const ADDRESSES = ['10.1.0.1', '127.0.0.1', '192.0.2.1'];
const ADDRESSES_6 = ['2001:db8::1', '::1'];

describe('backend: node port addresses of --nodeport-addresses, as in kube-proxy', () => {
  const select = (
    nodePortSelection: IptablesOptions['nodePortSelection'],
    family: IpFamily = 'IPv4',
    fields: Partial<IptablesOptions> = {},
  ) =>
    baseOptions(
      { ...options({ family }), onWarning: () => {}, nodePortSelection, ...fields },
      {
        addresses: family === 'IPv4' ? ADDRESSES : ADDRESSES_6,
        primary: family === 'IPv4' ? ['192.0.2.1'] : [],
      },
    ).nodePortAddresses;

  for (const [title, actual, expected] of [
    ['unset', select([]), 'all'],
    ['all', select(['all']), 'all'],
    ['all, in IPv6', select(['all', '10.0.0.0/8'], 'IPv6'), 'all'],
    ['primary', select(['primary']), ['192.0.2.1']],
    ['primary in a family without a primary address', select(['primary'], 'IPv6'), []],
    ['localhost', select(['localhost']), ['127.0.0.1']],
    [
      'localhost, with --iptables-localhost-nodeports=false',
      select(['primary', 'localhost'], 'IPv4', { localhostNodePorts: false }),
      ['192.0.2.1'],
    ],
    ['primary and localhost', select(['primary', 'localhost']), ['127.0.0.1', '192.0.2.1']],
    ['localhost, which is never [::1]', select(['localhost'], 'IPv6'), []],
    ['primary and a CIDR', select(['primary', '10.0.0.0/8']), ['10.1.0.1', '192.0.2.1']],
    ['primary and a CIDR of the other family', select(['primary', '10.0.0.0/8'], 'IPv6'), []],
    ['a CIDR', select(['10.0.0.0/8']), ['10.1.0.1']],
    ['a zero CIDR, which means all', select(['0.0.0.0/0']), 'all'],
    ['CIDRs of the other family only, which means all', select(['10.0.0.0/8'], 'IPv6'), 'all'],
    ['a loopback CIDR', select(['127.0.0.0/8']), ['127.0.0.1']],
    [
      'a loopback CIDR, with --iptables-localhost-nodeports=false',
      select(['127.0.0.0/8'], 'IPv4', { localhostNodePorts: false }),
      [],
    ],
    ['an IPv6 loopback CIDR, which selects nothing', select(['::1/128'], 'IPv6'), []],
  ] as const) {
    it(`selects addresses by ${title}`, () => assert.deepEqual(actual, expected));
  }
});

describe('backend: iptables', () => {
  /** A kernel in which rules of another program can block the removal of chains. */
  function kernelWithForeignJump() {
    const blocked = new Set<string>();
    const simulated = simulatedIptables((_table, lines) => {
      const line = lines.find((each) => blocked.has(each));
      if (line !== undefined)
        throw new IptablesError('iptables-restore', 'busy', { line }, undefined);
    });
    return { ...simulated, blocked };
  }

  it('keeps only the chain to which a rule of another program jumps', async () => {
    const { tables, blocked, iptables } = kernelWithForeignJump();
    const warnings: Record<string, unknown>[] = [];
    const backend = iptablesBackend(iptables, {
      ...options(),
      nodePortSelection: ['all'],
      onWarning: (details, message) => warnings.push({ ...details, message }),
    });
    const one = route({ id: 'one', name: 'default/one' }, ['10.244.0.1']);
    const two = route({ id: 'two', name: 'default/two', clusterIP: '10.96.0.11' }, ['10.244.0.2']);
    backend.update([one, two], []);
    await backend.apply(true);
    const chains = () =>
      tables
        .get('nat')
        ?.lines()
        .filter((line) => /^:KUBE-S(VC|EP)-.{16} /.test(line)) ?? [];
    const [held = ''] = chains().filter((line) => line.startsWith(':KUBE-SVC-'));
    const name = held.slice(1).split(' ')[0] ?? '';
    blocked.add(`-X ${name}`);
    backend.update([], ['one', 'two']);
    await assert.rejects(backend.apply(false), IptablesError);
    await backend.apply(true);
    assert.deepEqual(chains(), [held]);
    assert.equal(warnings.length, 1);
    const [{ table, chains: inUse, message } = {}] = warnings;
    assert.deepEqual([table, inUse], ['nat', [name]]);
    assert.equal(message, 'cannot remove iptables chains that are in use');

    // Other changes go on, and the chain is used again when its Service is back.
    backend.update([one], []);
    await backend.apply(false);
    blocked.clear();
    backend.update([], ['one']);
    await backend.apply(true);
    assert.deepEqual(chains(), []);
  });

  it('writes nat before filter, and removes the marks of mode ipvs last', async () => {
    const order: string[] = [];
    const { tables, iptables } = simulatedIptables((table) => order.push(table));
    tables.get('mangle')?.restore('*mangle\n:KUBE-ALL-PORTS - [0:0]\nCOMMIT\n');
    const backend = iptablesBackend(iptables, {
      ...options(),
      nodePortSelection: ['all'],
      onWarning: assert.fail,
    });
    backend.update([route({}, ['10.244.0.1'])], []);
    await backend.apply(true);
    assert.deepEqual(order, ['nat', 'filter', 'mangle']);
    assert.doesNotMatch(tables.get('mangle')?.lines().join() ?? '', /KUBE-ALL-PORTS/);
  });

  it('does not skip removals when a restore fails for another reason', async () => {
    let isLocked = false;
    const { iptables } = simulatedIptables(() => {
      if (isLocked) throw new IptablesError('iptables-restore', 'no lock', undefined, undefined);
    });
    const backend = iptablesBackend(iptables, {
      ...options(),
      nodePortSelection: ['all'],
      onWarning: assert.fail,
    });
    backend.update([route({ id: 'one', name: 'default/one' }, ['10.244.0.1'])], []);
    await backend.apply(true);
    backend.update([], ['one']);
    isLocked = true;
    await assert.rejects(backend.apply(true), IptablesError);
    isLocked = false;
    await backend.apply(true);
  });

  it('writes only the changed Service after a start that wrote nothing', async () => {
    const { iptables } = kernelWithForeignJump();
    const start = async () => {
      const backend = iptablesBackend(iptables, {
        ...options(),
        nodePortSelection: ['all'],
        onWarning: assert.fail,
      });
      const routes = Array.from({ length: 50 }, (_, index) =>
        route({ id: `${index}`, name: `default/s${index}`, clusterIP: `10.96.0.${index}` }, [
          '10.244.0.1',
        ]),
      );
      backend.update(routes, []);
      return { backend, ...(await backend.apply(true)) };
    };
    assert.ok((await start()).written > 100);
    const { backend, written } = await start();
    assert.equal(written, 0);
    backend.update(
      [route({ id: '7', name: 'default/s7', clusterIP: '10.96.0.7' }, ['10.244.0.2'])],
      [],
    );
    // The KUBE-SVC chain of the Service, and a new KUBE-SEP chain of two rules that replaces the
    // old KUBE-SEP chain.
    const rules = (nat: number) =>
      new Map([
        ['mangle', 0],
        ['nat', nat],
        ['filter', 0],
      ]);
    assert.deepEqual(await backend.apply(false), { written: 3, rulesWritten: rules(4) });
    assert.deepEqual(await backend.apply(false), { written: 0, rulesWritten: rules(0) });
  });

  it('counts the rules of its chains, and the rules that it wrote including jumps', async () => {
    const { iptables, tables } = kernelWithForeignJump();
    const backend = iptablesBackend(iptables, {
      ...options(),
      nodePortSelection: ['all'],
      onWarning: assert.fail,
    });
    backend.update([route({}, ['10.244.0.1', '10.244.0.2'])], []);
    const { rulesWritten } = await backend.apply(true);
    for (const [table, kernel] of tables) {
      const lines = kernel.lines().filter((line) => line.startsWith('-A '));
      const own = lines.filter((line) => /^-A KUBE-(?!FIREWALL)/.test(line));
      assert.equal(rulesWritten?.get(table), lines.length, table);
      assert.equal(backend.stats?.().rules?.get(table), own.length, table);
    }
  });

  it('reports a missing jump, rule or canary as drift', async () => {
    const { iptables, tables } = kernelWithForeignJump();
    const backend = iptablesBackend(iptables, {
      ...options(),
      nodePortSelection: ['all'],
      onWarning: assert.fail,
    });
    await backend.apply(true);
    assert.equal(await backend.findDrift(), undefined);
    for (const [table, chain, drift] of [
      ['nat', 'OUTPUT', 'jump from OUTPUT to KUBE-SERVICES in table nat'],
      ['filter', 'KUBE-FIREWALL', 'rule of chain KUBE-FIREWALL in table filter'],
      ['mangle', 'KUBE-PROXY-CANARY', 'chain KUBE-PROXY-CANARY of table mangle'],
    ] as const) {
      tables.get(table)?.restore(`*${table}\n:${chain} - [0:0]\nCOMMIT\n`);
      assert.equal(await backend.findDrift(), drift);
      await backend.apply(true);
    }
  });

  it('fails when a restore names a line that removes no chain', async () => {
    const { iptables } = kernelWithForeignJump();
    const error = new IptablesError('iptables-restore', 'bad', { line: '-A nonsense' }, undefined);
    const backend = iptablesBackend(
      { ...iptables, restore: () => Promise.reject(error) },
      { ...options(), nodePortSelection: ['all'], onWarning: assert.fail },
    );
    await assert.rejects(backend.apply(true), error);
  });
});
