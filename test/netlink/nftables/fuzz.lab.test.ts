import assert from 'node:assert/strict';
import { PATIENCE } from '../../lab/lab.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../namespace.ts';
import type { FuzzOutcomes } from './fuzz-calls.ts';

/**
 * Namespaces at work at once, and random transactions of each kind in each: 10,000 in all. The kernel waits for an RCU grace
 * period after each refused transaction, 10 ms, so one namespace would take minutes.
 */
const NAMESPACES = 10;
const COUNT = 500;

describe('fuzz: random nf_tables transactions', () => {
  let namespaces: Namespace[] = [];
  let helpers: NetnsHelper[];
  before(async () => {
    for (let at = 0; at < NAMESPACES; at++) namespaces.push(await createNamespace());
    helpers = namespaces.map((each) => each.helper());
  });
  after(async () => {
    await Promise.all(namespaces.map((each) => each[Symbol.asyncDispose]()));
    namespaces = [];
  });

  /** The outcomes in all namespaces, each with a seed of its own. */
  async function outcomesOf(
    method: 'nftFuzzOperations' | 'nftFuzzMessages',
  ): Promise<ReadonlyMap<string, number>> {
    const counts = new Map<string, number>();
    const all = await Promise.all(
      helpers.map((helper, seed): Promise<FuzzOutcomes> => helper.call(method, seed, COUNT)),
    );
    for (const [outcome, count] of all.flatMap((each) => Object.entries(each)))
      counts.set(outcome, (counts.get(outcome) ?? 0) + count);
    const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
    assert.equal(total, NAMESPACES * COUNT);
    return counts;
  }

  it('are applied if they are well-formed, or an error names the object', async function () {
    this.timeout(120_000 * PATIENCE);
    const outcomes = await outcomesOf('nftFuzzOperations');
    const often = (outcome: string) => assert.ok((outcomes.get(outcome) ?? 0) > 20, outcome);
    often('accepted');
    often('set x: EEXIST');
    often('rule # of chain x, expression absent: ENOENT');
    often('flowtable x: ENOENT');
    const object =
      '(?:table (?:pw|absent)|(?:set|chain|counter|flowtable) x|rule # of chain x(?:, expression [a-z_]+)?|(?:add|delete) (?:#|elements) in set x)';
    for (const outcome of outcomes.keys())
      assert.match(outcome, new RegExp(`^(?:accepted|${object}: E[A-Z]+)$`));
  });

  it('are refused by the kernel if they are malformed, or it discards them at once', async function () {
    this.timeout(120_000 * PATIENCE);
    const outcomes = await outcomesOf('nftFuzzMessages');
    const often = (outcome: string) => assert.ok((outcomes.get(outcome) ?? 0) > 20, outcome);
    for (const each of ['accepted', 'EINVAL', 'ENOENT', 'all: EBADMSG (the kernel did not reply)'])
      often(each);
    for (const outcome of outcomes.keys())
      assert.match(outcome, /^(?:accepted|E[A-Z]+|all: EBADMSG \(the kernel did not reply\))$/);
  });
});
