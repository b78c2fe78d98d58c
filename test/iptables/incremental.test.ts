import assert from 'node:assert/strict';
import fc from 'fast-check';
import { familyOf } from '../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { iptablesRuleset } from '../../iptables/backend.ts';
import { iptablesStaticRules } from '../../iptables/base-rules.ts';
import { restoreInput } from '../../iptables/restore.ts';
import { type Ruleset, TABLES } from '../../iptables/ruleset.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import { endpoint, service, slice } from '../fixtures.ts';
import { arbitraryChange, type ClusterChange } from './generated.ts';
import { options } from './options.ts';
import { SimulatedTable } from './restore-simulator.ts';

const BUILTIN = ['PREROUTING', 'INPUT', 'FORWARD', 'OUTPUT', 'POSTROUTING'];

function newTable(): RouteTable {
  return new RouteTable({ nodeName: 'node-a', allPortsEnabled: true, onChange: () => {} });
}

function feed(table: RouteTable, step: ClusterChange): void {
  if ('upsert' in step) table.upsert(step.upsert);
  else if ('remove' in step) table.remove(step.remove.kind, step.remove.key);
  else table.setNodeAddresses(new Set(step.nodeAddresses));
}

/** One family of a node: a ruleset, and a simulated kernel that follows it. */
class Machine {
  readonly family: IpFamily;
  readonly ruleset: Ruleset;
  readonly kernel = new Map(TABLES.map((table) => [table, new SimulatedTable(BUILTIN)]));
  readonly perTransaction: number;

  constructor(family: IpFamily, perTransaction: number) {
    this.family = family;
    this.ruleset = iptablesRuleset(options({ family }));
    this.perTransaction = perTransaction;
  }

  take(table: RouteTable, addresses: readonly string[]): void {
    const own = addresses.filter((address) => familyOf(address) === this.family);
    this.ruleset.setOptions(
      options({ family: this.family, nodeAddresses: own }),
      iptablesStaticRules(options({ family: this.family, nodeAddresses: own })),
    );
    const { routes } = table.takeChanges();
    const ofFamily = <T extends { family: IpFamily }>(list: readonly T[]) =>
      list.filter(({ family }) => family === this.family);
    this.ruleset.update(
      ofFamily(routes.upserts),
      ofFamily(routes.removals).map(({ id }) => id),
    );
  }

  syncIncrementally(): void {
    for (const pending of this.ruleset.pendingChanges()) {
      this.kernel.get(pending.table)?.restore(restoreInput(pending, this.perTransaction));
      this.ruleset.markWritten(pending);
    }
  }

  async syncFully(): Promise<number> {
    let written = 0;
    for (const [table, kernel] of this.kernel) {
      const before = kernel.commits;
      kernel.restore(
        restoreInput(this.ruleset.diff(table, await kernel.saved()), this.perTransaction),
      );
      written += kernel.commits - before;
    }
    return written;
  }

  lines(): string[][] {
    return [...this.kernel.values()].map((kernel) => kernel.lines());
  }
}

describe('incremental: syncing iptables rules', () => {
  for (const family of IP_FAMILIES) {
    for (const perTransaction of [Infinity, 3]) {
      it(`writes the same rules step by step as a full sync (${family}, ${perTransaction} chains a commit)`, async () => {
        await fc.assert(
          fc.asyncProperty(
            fc.array(arbitraryChange, { minLength: 1, maxLength: 12 }),
            async (steps) => {
              const table = newTable();
              const machine = new Machine(family, perTransaction);
              await machine.syncFully();
              let addresses: readonly string[] = [];
              for (const step of steps) {
                if ('nodeAddresses' in step) addresses = step.nodeAddresses;
                feed(table, step);
                machine.take(table, addresses);
                machine.syncIncrementally();
              }

              const fresh = new Machine(family, Infinity);
              const freshTable = newTable();
              for (const step of steps) feed(freshTable, step);
              fresh.take(freshTable, addresses);
              await fresh.syncFully();
              assert.deepEqual(machine.lines(), fresh.lines());
              for (const [rules, kernel] of machine.lines().entries()) {
                const own = kernel.filter((line) => /^-A KUBE-(?!FIREWALL)/.test(line)).length;
                assert.equal(machine.ruleset.ruleCounts.get(TABLES[rules] ?? 'nat'), own);
              }
              for (const line of machine.lines().flat()) {
                // XT_EXTENSION_MAXNAMELEN of the kernel, without the terminating NUL.
                if (line.startsWith(':')) assert.ok(line.indexOf(' ') <= 1 + 28, line);
              }
              assert.equal(await machine.syncFully(), 0, 'a full sync finds no difference');
            },
          ),
          { seed: 42, numRuns: 150 },
        );
      });
    }
  }

  it('takes over the rules of an earlier agent in a full sync, without stale chains', async () => {
    const steps = fc.array(arbitraryChange, { minLength: 1, maxLength: 8 });
    await fc.assert(
      fc.asyncProperty(steps, steps, async (earlier, later) => {
        const old = new Machine('IPv4', Infinity);
        const oldTable = newTable();
        for (const step of earlier) feed(oldTable, step);
        old.take(oldTable, []);
        await old.syncFully();

        const taking = new Machine('IPv4', 3);
        for (const [table, kernel] of old.kernel) taking.kernel.set(table, kernel);
        const table = newTable();
        for (const step of later) feed(table, step);
        taking.take(table, []);
        await taking.syncFully();

        const fresh = new Machine('IPv4', Infinity);
        const freshTable = newTable();
        for (const step of later) feed(freshTable, step);
        fresh.take(freshTable, []);
        await fresh.syncFully();
        assert.deepEqual(taking.lines(), fresh.lines());
      }),
      { seed: 7, numRuns: 100 },
    );
  });

  it('renders the same rules for objects in any order', async () => {
    const objects = fc.array(
      arbitraryChange.filter((step) => 'upsert' in step),
      { minLength: 2, maxLength: 10 },
    );
    await fc.assert(
      fc.asyncProperty(objects, async (steps) => {
        const byKey = [...Map.groupBy(steps, ({ upsert: { kind, key } }) => `${kind} ${key}`)];
        const last = byKey.flatMap(([, versions]) => versions.slice(-1));
        const render = async (order: readonly ClusterChange[]) => {
          const table = newTable();
          for (const step of order) feed(table, step);
          const machine = new Machine('IPv4', Infinity);
          machine.take(table, []);
          await machine.syncFully();
          return machine.lines();
        };
        assert.deepEqual(await render(last), await render(last.toReversed()));
      }),
      { seed: 3, numRuns: 100 },
    );
  });
});

describe('incremental: a change of one Service', () => {
  it('writes only the chains of that Service', async () => {
    const table = newTable();
    const machine = new Machine('IPv4', Infinity);
    for (let index = 0; index < 200; index++) {
      const name = `s${index}`;
      table.upsert(service({ name, clusterIPs: [`10.96.${index >> 7}.${index & 127}`] }));
      table.upsert(
        slice([endpoint('10.244.0.1'), endpoint('10.244.0.2')], {
          name: `${name}-1`,
          serviceKey: `default/${name}`,
        }),
      );
    }
    machine.take(table, []);
    await machine.syncFully();
    for (const pending of machine.ruleset.pendingChanges()) machine.ruleset.markWritten(pending);

    table.upsert(
      slice([endpoint('10.244.0.1'), endpoint('10.244.0.3')], {
        name: 's77-1',
        serviceKey: 'default/s77',
      }),
    );
    machine.take(table, []);
    const changes = machine.ruleset
      .pendingChanges()
      .map(({ table: name, write, remove }) => [
        name,
        [...write.keys()].map((chain) => chain.slice(0, 9)).sort(),
        remove.length,
      ]);
    assert.deepEqual(changes, [
      ['mangle', [], 0],
      ['nat', ['KUBE-SEP-', 'KUBE-SVC-'], 1],
      ['filter', [], 0],
    ]);
  });
});
