import assert from 'node:assert/strict';
import { encodeRule, meta, verdict } from '../../../netlink/nftables/rule.ts';
import type { NftOperation } from '../../../netlink/nftables/tables.ts';
import { type Namespace, type NetnsHelper, sharedNetns } from '../namespace.ts';

const ENOENT = 2;
const drop = { expressions: encodeRule([verdict({ kind: 'drop' })]) };

describe('transactions: nf_tables transactions under hard conditions', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;

  const netns = sharedNetns(({ helper: { call } }) =>
    call('hold', 'flush ruleset', 'nft', '-f', '-'),
  );
  beforeEach(async () => {
    ({ namespace, helper } = await netns());
  });

  it('refuses a transaction that the send buffer cannot hold, and says both sizes', async () => {
    const failure = await helper.call('nftSmallBuffer', 500);
    const [, bytes, limit] =
      /^NetlinkError: transaction: EMSGSIZE \(a batch of (\d+) bytes in a send buffer of (\d+) bytes\)$/.exec(
        failure,
      ) ?? [];
    assert.ok(Number(bytes) > 50_000 && Number(limit) >= 4096 && Number(limit) < 20_000, failure);
    assert.match(await namespace.run('nft', 'list', 'chains'), /chain chain-0 \{\s+\}\s+\}/);
  });

  it('applies a transaction of 20 MiB at once', async () => {
    await helper.call('nftManyChains', 80_000);
    const { length } = (await helper.call('nftChains', 'IPv4')) ?? [];
    assert.equal(length, 80_000);
  });

  it('names the first refused part, also if the errors overrun the receive buffer', async () => {
    const operations = Array.from({ length: 20_000 }, (_, index): NftOperation => {
      return { action: 'fill', chain: { name: `chain-${index}`, rules: [drop] } };
    });
    assert.deepEqual(await helper.call('nftTransact', operations), {
      message: 'chain chain-0: ENOENT',
      set: undefined,
      action: undefined,
      key: undefined,
      errno: ENOENT,
      chain: 'chain-0',
      rule: undefined,
    });
    // The same helper can go on.
    await helper.call('nftManyChains', 1);
  });

  it('names an expression that the kernel lacks, its rule and its chain', async () => {
    await helper.call('nftManyChains', 1);
    const [first, ...others] = [meta(0, 3), meta(0, 3), verdict({ kind: 'drop' })];
    const unknown = { type: 1, value: [{ type: 1, value: Buffer.from('teleport\0') }] };
    const expressions = encodeRule([first ?? unknown, unknown, ...others]);
    const rules = [drop, { expressions }];
    const refusal = await helper.call('nftTransact', [
      { action: 'fill', chain: { name: 'other', rules } },
    ]);
    assert.deepEqual(
      [refusal?.message, refusal?.errno],
      ['rule 1 of chain other, expression teleport: ENOENT', ENOENT],
    );
  });

  describe('while another program commits continuously', () => {
    const CHAINS = 2000;
    let other: NetnsHelper;
    beforeEach(async () => {
      other = namespace.helper();
      // Chains of earlier tables come first in dumps.
      await helper.call('hold', 'table ip other { }', 'nft', '-f', '-');
      await helper.call('nftManyChains', CHAINS);
    });
    afterEach(() => other.stop());

    it('applies all transactions, and lists whole tables', async () => {
      await other.call('nftChurn', 'other');
      const { found, applied } = await helper.call('nftWork', 10, 20);
      const commits = await other.call('nftEndChurn');
      assert.ok(commits > 100, `${commits} commits`);
      assert.equal(applied, 200);
      assert.deepEqual(found, Array(10).fill([CHAINS, CHAINS, 2 * CHAINS, 0, 0]));
    });
  });
});
