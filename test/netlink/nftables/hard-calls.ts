/** nf_tables calls under hard conditions, which tests run inside a network namespace. */
import { NETLINK_NETFILTER } from '../../../netlink/core/descriptor.ts';
import { labelErrors } from '../../../netlink/core/error.ts';
import { NetlinkSocket } from '../../../netlink/core/socket.ts';
import { encodeRule, verdict } from '../../../netlink/nftables/rule.ts';
import { NfTables, type NftOperation } from '../../../netlink/nftables/tables.ts';
import { TransactionBuilder } from '../../../netlink/nftables/transaction-builder.ts';

const AF_INET = 2;
const drop = { expressions: encodeRule([verdict({ kind: 'drop' })]) };

let isChurning = false;
let churn: Promise<number> | undefined;

/** Commits continuously: a chain appears and disappears, so that positions of later chains in dumps change. */
async function commitContinuously(table: string): Promise<number> {
  const tables = new NfTables('IPv4', table);
  let commits = 0;
  for (; isChurning; commits += 2) {
    await tables.transact([{ action: 'fill', chain: { name: 'passing', rules: [drop] } }]);
    await tables.transact([{ action: 'remove', chains: ['passing'] }]);
    // A stop is heard.
    await new Promise(setImmediate);
  }
  await tables.close();
  return commits;
}

export const hardCalls = {
  /** Sends a transaction of some chains through a socket with a small send buffer, then one of one chain. */
  async nftSmallBuffer(chains: number): Promise<string> {
    const socket = new NetlinkSocket(NETLINK_NETFILTER, { sendBuffer: 4096 });
    const send = async (count: number) => {
      const builder = new TransactionBuilder({ family: AF_INET, name: 'pw' });
      await builder.write(manyChains(count));
      const sent = socket.transaction(async () => builder.writer.finish());
      const [refusal] = await labelErrors('transaction', sent);
      return refusal;
    };
    try {
      const failure = await send(chains).then(() => 'sent', String);
      if ((await send(1)) !== undefined) throw new Error('a small transaction is refused');
      return failure;
    } finally {
      await socket.close();
    }
  },

  /** Declares a table with some chains of two rules. */
  async nftManyChains(count: number): Promise<void> {
    const tables = new NfTables('IPv4', 'pw');
    await tables.transact(manyChains(count));
    await tables.close();
  },

  /** Begins to commit changes of another table. */
  async nftChurn(table: string): Promise<void> {
    isChurning = true;
    churn = commitContinuously(table);
  },

  /** Ends it. @returns the number of commits so far. */
  async nftEndChurn(): Promise<number> {
    isChurning = false;
    return (await churn) ?? 0;
  },

  /** Lists and changes a table. @returns the numbers of objects that each round found, and of applied transactions. */
  async nftWork(rounds: number, transactions: number) {
    const tables = new NfTables('IPv4', 'pw');
    const found: (number | undefined)[][] = [];
    let applied = 0;
    for (let round = 0; round < rounds; round++) {
      for (let at = 0; at < transactions; at++) {
        await tables.transact([
          { action: 'fill', chain: { name: 'chain-1', rules: [drop, drop] } },
        ]);
        applied += 1;
      }
      const names = await tables.chains();
      const lists = [
        names,
        (await tables.chainsWithHooks())?.map(({ name }) => name),
        await tables.rules(),
        await tables.sets(),
        await tables.counters(),
      ];
      if (new Set(names).size !== names?.length) throw new Error('a chain is listed twice');
      found.push(lists.map((list) => list?.length));
    }
    await tables.close();
    return { found, applied };
  },
};

function manyChains(count: number): NftOperation[] {
  return [
    { action: 'declare', declarations: [] },
    ...Array.from({ length: count }, (_, index): NftOperation => {
      return { action: 'fill', chain: { name: `chain-${index}`, rules: [drop, drop] } };
    }),
  ];
}
