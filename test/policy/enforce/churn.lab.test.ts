import assert from 'node:assert/strict';
import { PATIENCE } from '../../lab/lab.ts';
import { createNamespace, type Namespace } from '../../netlink/namespace.ts';
import { contentOfTable } from '../kernel-content.ts';

const SIZE = { policies: 1000, pods: 200 };
const CHANGES = 200;

describe('churn: 1,000 policies and 200 pods that change', () => {
  const namespaces: Namespace[] = [];
  afterEach(async () => {
    for (const namespace of namespaces.splice(0)) await namespace[Symbol.asyncDispose]();
  });
  const create = async () => {
    const namespace = await createNamespace();
    namespaces.push(namespace);
    return { namespace, helper: namespace.helper() };
  };
  const content = async ({ run }: Namespace, family: string) =>
    contentOfTable(await run('nft', '-j', 'list', 'table', family, 'portwide-policy'));

  it('give the same kernel state as a new agent with the final objects', async function () {
    this.timeout(180_000 * PATIENCE);
    const [churned, fresh] = [await create(), await create()];
    const objects = await churned.helper.call('churnAll', 11, SIZE, CHANGES);
    await fresh.helper.call('churnStart', objects.toReversed());
    for (const { helper } of [churned, fresh]) {
      assert.deepEqual(await helper.call('churnLog'), []);
    }
    for (const family of ['ip', 'ip6']) {
      const expected = await content(fresh.namespace, family);
      assert.ok(expected.length > 1000, `${expected.length} lines`);
      assert.deepEqual(await content(churned.namespace, family), expected);
    }
  });
});
