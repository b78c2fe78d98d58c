/** nf_tables calls that tests run inside a network namespace. */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import type { IpFamily } from '../../../api/objects.ts';
import { u32 } from '../../../netlink/core/host-order.ts';
import {
  deleteTable,
  listTables,
  NfTables,
  type NftElement,
  type NftElementChange,
  type NftNotification,
  type NftOperation,
  type NftReader,
  NftRefusedError,
} from '../../../netlink/nftables/tables.ts';
import { watchNftables } from '../../../netlink/nftables/watch.ts';

/** Fields of a NftRefusedError: IPC does not transfer error objects completely. */
export interface RefusedTransaction {
  readonly message: string;
  readonly set: string | undefined;
  readonly action: string | undefined;
  readonly key: string | undefined;
  /** Only for a refused chain or rule. */
  readonly chain?: string;
  readonly rule?: number | undefined;
  readonly errno: number;
}

let watch: { close(): Promise<void> } | undefined;

async function withTable<T>(
  family: IpFamily,
  table: string,
  use: (table: NfTables) => Promise<T>,
): Promise<T> {
  const tables = new NfTables(family, table);
  try {
    return await use(tables);
  } finally {
    await tables.close();
  }
}

function refusal(error: unknown): RefusedTransaction {
  if (!(error instanceof NftRefusedError)) throw error;
  const { message, set, action, element, chain, rule, errno } = error;
  const key = element?.key.toString('hex');
  return { message, set, action, key, errno, ...(chain === undefined ? {} : { chain, rule }) };
}

export const nftCalls = {
  listTables,
  deleteTable,
  nftChains: async (family: IpFamily) => withTable(family, 'pw', (table) => table.chains()),
  nftSets: async (family: IpFamily) => withTable(family, 'pw', (table) => table.sets()),

  /** @returns the error if the kernel refused the transaction. */
  nftChange: async (
    changes: readonly NftElementChange[],
    family: IpFamily = 'IPv4',
  ): Promise<RefusedTransaction | undefined> =>
    withTable(family, 'pw', async (table) => {
      await table.transact(changes);
      return undefined;
    }).catch(refusal),

  /** @returns the error if the kernel refused the transaction. */
  nftTransact: async (
    operations: readonly NftOperation[],
  ): Promise<RefusedTransaction | undefined> =>
    withTable('IPv4', 'pw', async (table) => {
      await table.transact(operations);
      return undefined;
    }).catch(refusal),

  nftDelete: async () => withTable('IPv4', 'pw', (table) => table.delete()),

  nftCounters: async () => withTable('IPv4', 'pw', (table) => table.counters()),

  nftElements: async (set: string, family: IpFamily = 'IPv4'): Promise<NftElement[]> =>
    withTable(family, 'pw', async (table) => {
      let elements: NftElement[] = [];
      await table.visitElements(
        set,
        (element) => elements.push(element),
        () => {
          elements = [];
        },
      );
      return elements;
    }),

  /** Visits a set. @returns the event loop turns in which elements were visited. */
  nftVisitTurns: async (set: string): Promise<number> =>
    withTable('IPv4', 'pw', async (table) => {
      const turns = new Set<number>();
      let turn = 0;
      let isOver = false;
      const next = () => {
        turn += 1;
        if (!isOver) setImmediate(next);
      };
      next();
      await table.visitElements(set, () => turns.add(turn));
      isOver = true;
      return turns.size;
    }),

  /** Starts several transactions concurrently on one client. */
  nftChangesAtOnce: async (transactions: readonly (readonly NftElementChange[])[]): Promise<void> =>
    withTable('IPv4', 'pw', async (table) => {
      await Promise.all(transactions.map((changes) => table.transact(changes)));
    }),

  /**
   * Adds `count` elements to a set of u32 keys in one transaction and dumps them.
   * @returns the number of elements found, and the event loop turns meanwhile.
   */
  async nftLoad(set: string, count: number) {
    const elements = Array.from({ length: count }, (_, index) => {
      const key = Buffer.alloc(4);
      key.writeUInt32BE(index);
      return { key };
    });
    const turns = { encoding: 0, dump: 0 };
    let counting: keyof typeof turns | undefined = 'encoding';
    const turn = () => {
      if (counting === undefined) return;
      turns[counting]++;
      setImmediate(turn);
    };
    setImmediate(turn);
    let found: number[] = [];
    await withTable('IPv4', 'pw', async (table) => {
      // Not sent, because the last element is invalid.
      const impossible = [...elements, { key: Buffer.alloc(65) }];
      await table
        .transact([{ action: 'add', set, elements: impossible }])
        .catch((error: unknown) => {
          if (!(error instanceof RangeError)) throw error;
        });
      counting = undefined;
      await table.transact([{ action: 'add', set, elements }]);
      counting = 'dump';
      setImmediate(turn);
      await table.visitElements(
        set,
        ({ key }) => found.push(key.readUInt32BE()),
        () => {
          found = [];
        },
      );
    });
    counting = undefined;
    return { found: found.length, distinct: new Set(found).size, turns };
  },

  /** Dumps a set, and runs `nft` during the first `times` attempts. */
  async nftChangedDump(set: string, times: number, command: string) {
    let keys: string[] = [];
    let attempts = 1;
    let changes = 0;
    await withTable('IPv4', 'pw', (table) =>
      table.visitElements(
        set,
        ({ key }) => {
          if (changes < Math.min(times, attempts)) {
            changes++;
            execFileSync('nft', ['-f', '-'], { input: command });
          }
          keys.push(key.toString('hex'));
        },
        () => {
          keys = [];
          attempts++;
        },
      ),
    );
    return { attempts, keys };
  },

  /** Dumps a set while another client changes the table. @returns what ended first, and the elements found. */
  async nftDumpDuringChange(set: string, changes: readonly NftElementChange[], besides: boolean) {
    let found = 0;
    let restarts = 0;
    let first: 'dump' | 'change' | undefined;
    const other = new NfTables('IPv4', 'pw');
    let changed: Promise<void> | undefined;
    const dump = (table: NftReader) =>
      table.visitElements(
        set,
        () => {
          found++;
          changed ??= other.transact(changes).then(() => {
            first ??= 'change';
          });
        },
        () => {
          found = 0;
          restarts++;
        },
      );
    await withTable('IPv4', 'pw', (table) => (besides ? table.readBesides(dump) : dump(table)));
    first ??= 'dump';
    await changed;
    await other.close();
    return { found, restarts, first };
  },

  /** Starts a large transaction, then other operations. @returns their order of completion. */
  async nftCompletionOrder(set: string, count: number): Promise<string[]> {
    const elements = Array.from({ length: count }, (_, index) => ({ key: u32(index) }));
    const order: string[] = [];
    const ended = (what: string) => () => order.push(what);
    const other = new NfTables('IPv4', 'pw');
    await withTable('IPv4', 'pw', async (table) => {
      await Promise.all([
        other.transact([{ action: 'add', set, elements }]).then(ended('change')),
        table.chains().then(ended('chains')),
        table.sets().then(ended('sets')),
        table
          .transact([{ action: 'fill', chain: { name: 'added', rules: [] } }])
          .then(ended('rules')),
      ]);
    });
    await other.close();
    return order;
  },

  async nftThrowingVisit(set: string): Promise<number> {
    return withTable('IPv4', 'pw', async (table) => {
      const thrown = table.visitElements(set, () => {
        throw new Error('visit');
      });
      await thrown.catch((error: unknown) => {
        if (!(error instanceof Error) || error.message !== 'visit') throw error;
      });
      // The socket is still usable.
      return (await table.sets())?.length ?? 0;
    });
  },

  /**
   * Watches nf_tables and applies `changes` with a client whose changes are filtered, own or
   * neither.
   */
  async nftWatch(ignored: 'filtered' | 'own' | 'none', changes: readonly NftElementChange[]) {
    const send = (change: NftNotification) => process.send?.({ type: 'nft', change });
    const table = new NfTables('IPv4', 'pw');
    const portIds = [1, table.portId, 0xffffffff];
    watch = watchNftables({
      onChange: send,
      onOverrun: (error) => process.send?.({ type: 'overrun', code: error.message }),
      ...(ignored === 'filtered' ? { filteredPortIds: portIds } : {}),
      ...(ignored === 'own' ? { isOwnPortId: (id: number) => portIds.includes(id) } : {}),
    });
    await table.transact(changes);
    const { portId } = table;
    await table.close();
    return portId;
  },

  async closeNftWatch(): Promise<void> {
    await watch?.close();
  },

  /** The addresses that accepted `times` TCP connections. */
  async answeringAddresses(host: string, port: number, serverPort: number, times: number) {
    const server = createServer((socket) => socket.end(String(socket.localAddress)));
    server.listen(serverPort, '0.0.0.0');
    await once(server, 'listening');
    const answers: string[] = [];
    for (let index = 0; index < times; index++) {
      const socket = connect({ host, port });
      let answer = '';
      for await (const chunk of socket) answer += chunk;
      answers.push(answer);
    }
    server.close();
    return answers;
  },
};
