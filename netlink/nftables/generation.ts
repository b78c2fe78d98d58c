/** Tells by the generation ID of nf_tables whether other programs have changed nf_tables. */
import { SerialQueue } from '../../sync/serial-queue.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { withSocket } from '../core/socket.ts';
import { generationRequest, readGeneration } from './message.ts';

/**
 * Serializes the transactions and dumps of this thread. A transaction for another table, such as
 * the table of the other IP family, would interrupt a dump. The kernel serializes the transactions
 * of a network namespace anyway.
 */
export const transactionQueue = new SerialQueue();

let ownTransactions = 0;

/**
 * Counts a transaction of this process that changed nf_tables. One that changed nothing must not count: the kernel
 * assigns no generation to it. An uncounted transaction looks like one of another program.
 */
export function countOwnTransaction(): void {
  ownTransactions += 1;
}

/**
 * The number of transactions of other programs, plus a constant. Each transaction that changes something increments the
 * generation ID (nf_tables_commit). If two calls return the same number, no other program has changed nf_tables in
 * between.
 * @throws NetlinkError, such as EINVAL if the kernel has no nf_tables.
 */
export function foreignTransactions(): Promise<number> {
  return transactionQueue.run(async () => {
    const generation = await withSocket(NETLINK_NETFILTER, (socket) =>
      socket.get(generationRequest(), readGeneration),
    );
    return (generation - ownTransactions) >>> 0;
  });
}
