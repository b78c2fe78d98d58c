import assert from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';
import fc from 'fast-check';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import type { ClusterChange } from '../iptables/generated.ts';
import { PATIENCE } from '../lab/lab.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../netlink/namespace.ts';
import { change } from './generated.ts';
import { Node } from './node.ts';

/** Damage by another program: a script for nft, or the number of an element to delete. */
const damage: fc.Arbitrary<string | number> = fc.oneof(
  fc.nat(1000),
  fc.constantFrom(
    'delete table IP portwide',
    'flush chain IP portwide services',
    'flush chain IP portwide nat-prerouting',
    'flush map IP portwide service-ports',
    'flush map IP portwide range-services; flush set IP portwide hairpin-connections',
    'flush set IP portwide allowed-ranges; flush map IP portwide endpoints',
    'add table IP portwide { flags dormant; }',
    'add chain IP portwide filter-forward { policy drop; }',
    'insert rule IP portwide services accept; add rule IP portwide reject-packet drop',
    'add chain IP portwide foreign; add rule IP portwide foreign tcp dport { 1, 2, 3 } accept',
    `add chain IP portwide foreign { type filter hook input priority 0; policy drop; }
     add rule IP portwide foreign jump services`,
    `add chain IP portwide foreign
     add element IP portwide service-ips { ADDRESS : goto foreign }
     add element IP portwide service-ports { ADDRESS . tcp . 80 : goto foreign }`,
    `add set IP portwide foreign { type mark; }
     add rule IP portwide services meta mark @foreign accept`,
    `add chain IP portwide foreign
     add map IP portwide verdicts { type mark : verdict; elements = { 1 : jump foreign } }
     add rule IP portwide foreign meta mark vmap @verdicts`,
    'add element IP portwide range-services { ADDRESS . 1 : drop }',
    'add element IP portwide allowed-ranges { ADDRESS . tcp . 79-81 . ANY }',
    'add element IP portwide affinity { ADDRESS . ADDRESS . tcp . 80 : ADDRESS . 80 }',
    'flush chain IP portwide service-endpoints-check; delete map IP portwide no-endpoint-ports',
    `delete table IP portwide
     add table IP portwide
     add map IP portwide endpoints { type mark : mark; }`,
  ),
);

function scriptOf(text: string, family: IpFamily): string {
  const [ip, address, any] =
    family === 'IPv4'
      ? ['ip', '203.0.113.1', '128.0.0.0/1']
      : ['ip6', '2001:db8:113::1', '2000::/3'];
  return text.replaceAll('IP', ip).replaceAll('ADDRESS', address).replaceAll('ANY', any);
}

/** The state without affinity entries, which packets write. */
function withoutAffinity(state: Readonly<Record<string, readonly string[]>>) {
  return { ...state, ...('set affinity' in state && { 'set affinity': [] }) };
}

const steps = fc.array(change, { minLength: 1, maxLength: 12 });

describe('incremental: incremental syncs of mode nftables', () => {
  let namespaces: Namespace[];
  let here: NetnsHelper;
  let there: NetnsHelper;

  beforeEach(async () => {
    namespaces = await Promise.all([createNamespace(), createNamespace()]);
    const [one, other] = namespaces.map((namespace) => namespace.helper());
    assert.ok(one && other);
    [here, there] = [one, other];
  });
  afterEach(async () => {
    for (const namespace of namespaces) await namespace[Symbol.asyncDispose]();
  });

  /** The state that a new agent writes for these changes in an empty namespace. */
  async function newAgentState(family: IpFamily, all: readonly ClusterChange[]) {
    await there.call('hold', 'flush ruleset', 'nft', '-f', '-');
    const node = await Node.start(family, there);
    await node.feed(all);
    await node.apply(true);
    const state = await node.state();
    await node.stop();
    return state;
  }

  for (const family of IP_FAMILIES) {
    it(`leaves the same table after incremental syncs as after one full sync (${family})`, async function () {
      this.timeout(180_000 * PATIENCE);
      await fc.assert(
        fc.asyncProperty(steps, async (all) => {
          await here.call('hold', 'flush ruleset', 'nft', '-f', '-');
          const node = await Node.start(family, here);
          await node.apply(true);
          for (const step of all) {
            await node.feed([step]);
            await node.apply(false);
            assert.deepEqual(await node.differences(), [], 'a comparison finds no drift');
            assert.equal(await node.apply(false), 0, 'a second sync writes nothing');
          }
          const expected = await newAgentState(family, all);
          const state = await node.state();
          for (const [name, content] of Object.entries(state)) {
            // Unused chains and maps remain until the next full sync.
            if (name in expected) assert.deepEqual(content, expected[name], name);
            else if (name.startsWith('set ')) assert.deepEqual(content, [], name);
          }
          for (const name of Object.keys(expected)) assert.ok(name in state, name);
          assert.equal(await node.apply(true), 0, 'a full sync finds no drift');
          assert.deepEqual(await node.state(), expected);
          await node.stop();
        }),
        { seed: 42, numRuns: 16 },
      );
    });

    it(`repairs any damage to the table in a full sync (${family})`, async function () {
      this.timeout(180_000 * PATIENCE);
      const damages = fc.array(damage, { minLength: 1, maxLength: 4 });
      await fc.assert(
        fc.asyncProperty(steps, steps, damages, async (earlier, later, applied) => {
          await here.call('hold', 'flush ruleset', 'nft', '-f', '-');
          const node = await Node.start(family, here);
          await node.feed(earlier);
          await node.apply(true);
          const before = await node.state();
          for (const what of applied) {
            // Earlier damage may make later damage fail.
            if (typeof what === 'number') {
              await here.call('modeDeleteElement', family, what).catch(() => undefined);
            } else {
              await here.call('modeScript', scriptOf(what, family));
            }
          }
          const isDamaged = !isDeepStrictEqual(withoutAffinity(await node.state()), before);
          if (isDamaged) assert.notDeepEqual(await node.differences(), []);
          await node.feed(later);
          await node.apply(true);
          assert.deepEqual(await node.differences(), []);
          assert.deepEqual(await node.state(), await newAgentState(family, [...earlier, ...later]));
          assert.equal(await node.apply(true), 0);
          const isReplaced = (warning: string) => /incompatible version/.test(warning);
          const warnings = await node.warnings();
          assert.deepEqual(
            warnings.filter((warning) => !isReplaced(warning)),
            [],
          );
          await node.stop();
        }),
        { seed: 7, numRuns: 16 },
      );
    });

    it(`takes over the table of an agent that was killed (${family})`, async function () {
      this.timeout(180_000 * PATIENCE);
      await fc.assert(
        fc.asyncProperty(steps, steps, async (earlier, later) => {
          await newAgentState(family, earlier);
          const node = await Node.start(family, there);
          await node.feed(later);
          await node.apply(true);
          const state = await node.state();
          assert.equal(await node.apply(true), 0);
          await node.stop();
          assert.deepEqual(state, await newAgentState(family, later));
        }),
        { seed: 3, numRuns: 12 },
      );
    });
  }
});
