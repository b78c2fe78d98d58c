/**
 * Runs the command nft, with which the agent declares tables, sets and chains. The agent writes elements and rules
 * over netlink, and with nft only when it replaces an incompatible table.
 */
import { countOwnTransaction } from '../netlink/nftables/generation.ts';
import { ProgramError, ProgramTimeoutError, runProgram } from '../process/run-program.ts';

/**
 * Milliseconds after which nft is killed. Its scripts declare tables and maps and take seconds on a slow
 * node. A script is one transaction: when nft is killed, all of its changes are in force or none is.
 */
const TIMEOUT = 60_000;

/** nft refused a script, or could not be run. */
export class NftError extends Error {
  override readonly name = 'NftError';

  constructor(stderr: string, cause: unknown) {
    super(`nft failed: ${stderr.trim() || String(cause)}`, { cause });
  }
}

/** The operations of `nftCommand`; tests replace them. */
export type NftCommand = ReturnType<typeof nftCommand>;

/**
 * Number of nft process ids to remember. Before an id is dropped, the monitor has read all notifications of its
 * process.
 */
const MAX_REMEMBERED_PROCESS_IDS = 16;

const processIds = new Set<number>();
/** Ids of the last nft processes that this process ran. Notifications of their changes carry the id. */
export const nftProcessIds: ReadonlySet<number> = processIds;

function onStart(pid: number): void {
  processIds.add(pid);
  const [oldest = 0] = processIds;
  if (processIds.size > MAX_REMEMBERED_PROCESS_IDS) processIds.delete(oldest);
}

/**
 * Returns functions that run nft scripts. A script is one transaction.
 * @param timeout milliseconds; tests set it.
 */
export function nftCommand(timeout = TIMEOUT) {
  const nft = async (options: readonly string[], input: string) => {
    try {
      await runProgram('nft', [...options, '-f', '-'], { input, timeout, onStart });
    } catch (error) {
      if (error instanceof ProgramTimeoutError) throw error;
      throw new NftError(error instanceof ProgramError ? String(error.stderr ?? '') : '', error);
    }
  };
  return {
    /**
     * @param script must change something, such as a base chain that it declares (see `countOwnTransaction`).
     * @throws NftError if nft refuses the script or cannot be run: nothing has changed.
     * @throws ProgramTimeoutError if nft was killed: either all changes are in force or none.
     */
    run: async (script: string) => {
      await nft([], script);
      countOwnTransaction();
    },
    /**
     * Checks whether nft and the kernel accept the script; changes nothing.
     * @throws NftError if nft or the kernel refuses the script; ProgramTimeoutError if nft was killed.
     */
    check: (script: string) => nft(['--check'], script),
  };
}

/** Milliseconds to wait for the text of a chain. nft reads the whole table. */
const LIST_TIMEOUT = 2000;
/** A name that nft reads as one word. */
const PLAIN_NAME = /^[A-Za-z_][A-Za-z0-9_./-]{0,254}$/;

/**
 * A chain of any program as `nft -a list chain` prints it, to show it to people.
 * @param family as nft names it, such as `ip`.
 * @returns undefined if nft is missing, takes too long, or cannot print the chain.
 */
export async function chainText(
  family: string,
  table: string,
  chain: string,
): Promise<string | undefined> {
  if (![table, chain].every((name) => PLAIN_NAME.test(name))) return undefined;
  const args = ['-a', '-n', 'list', 'chain', family, table, chain];
  try {
    return await runProgram('nft', args, { timeout: LIST_TIMEOUT });
  } catch (error) {
    if (error instanceof ProgramError || error instanceof ProgramTimeoutError) return undefined;
    throw error;
  }
}
