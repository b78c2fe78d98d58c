import assert from 'node:assert/strict';
import fc from 'fast-check';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import type { Change } from '../iptables/generated.ts';
import { createNamespace, type Inhabitant, type Namespace } from '../netlink/namespace.ts';
import { change } from './generated.ts';
import { Node } from './node.ts';

const steps = fc.array(change, { minLength: 1, maxLength: 12 });

describe('syncing nftables step by step', () => {
  let namespaces: Namespace[];
  let here: Inhabitant;
  let there: Inhabitant;

  beforeEach(async () => {
    namespaces = await Promise.all([createNamespace(), createNamespace()]);
    const [one, other] = namespaces.map((namespace) => namespace.inhabitant());
    assert.ok(one && other);
    [here, there] = [one, other];
  });
  afterEach(async () => {
    for (const namespace of namespaces) await namespace[Symbol.asyncDispose]();
  });

  /** What a fresh agent makes of all that in a fresh namespace. */
  async function fresh(family: IpFamily, all: readonly Change[]) {
    await there.call('hold', 'flush ruleset', 'nft', '-f', '-');
    const node = await Node.start(family, there);
    await node.feed(all);
    await node.apply(true);
    const state = await node.state();
    await node.stop();
    return state;
  }

  for (const family of IP_FAMILIES) {
    it(`ends where a fresh full sync ends (${family})`, async function () {
      this.timeout(180_000);
      await fc.assert(
        fc.asyncProperty(steps, async (all) => {
          await here.call('hold', 'flush ruleset', 'nft', '-f', '-');
          const node = await Node.start(family, here);
          await node.apply(true);
          for (const step of all) {
            await node.feed([step]);
            await node.apply(false);
            assert.equal(await node.apply(false), 0, 'nothing is written twice');
          }
          const wanted = await fresh(family, all);
          const state = await node.state();
          for (const [name, content] of Object.entries(state)) {
            // Chains and maps that are of no use any more stay until everything is compared.
            if (name in wanted) assert.deepEqual(content, wanted[name], name);
            else if (name.startsWith('set ')) assert.deepEqual(content, [], name);
          }
          for (const name of Object.keys(wanted)) assert.ok(name in state, name);
          assert.equal(await node.apply(true), 0, 'a full sync finds nothing to mend');
          assert.deepEqual(await node.state(), wanted);
          await node.stop();
        }),
        { seed: 42, numRuns: 40 },
      );
    });
  }
});
