/** Runs nft: what declares tables, sets and chains is text for it. */
import { ProgramError, ProgramTimeoutError, runProgram } from '../process/run-program.ts';

/**
 * Milliseconds after which nft counts as hung and is killed. Scripts declare tables and maps, and what
 * is big goes over netlink, so that nft takes seconds on a slow node. A script is one transaction: one
 * that is killed has made all of its changes or none.
 */
const TIMEOUT = 60_000;

/** nft refused a script. */
export class NftError extends Error {
  override readonly name = 'NftError';

  constructor(stderr: string, cause: unknown) {
    super(`nft failed: ${stderr.trim() || String(cause)}`, { cause });
  }
}

export type NftCommand = ReturnType<typeof nftCommand>;

/** More than that many do not wait to be heard of. */
const MAX_REMEMBERED_PROCESS_IDS = 16;

const processIds = new Set<number>();
/** Of the last that this process ran: notifications of what they changed bear these. */
export const nftProcessIds: ReadonlySet<number> = processIds;

function onStart(pid: number): void {
  processIds.add(pid);
  const [oldest = 0] = processIds;
  if (processIds.size > MAX_REMEMBERED_PROCESS_IDS) processIds.delete(oldest);
}

/** Runs scripts of nft, each of which is one transaction. @param timeout milliseconds, for tests. */
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
    /** @throws NftError: nothing was changed; ProgramTimeoutError: perhaps all was. */
    run: (script: string) => nft([], script),
    /**
     * Whether nft and the kernel would take it; nothing is changed.
     * @throws NftError when not, ProgramTimeoutError
     */
    check: (script: string) => nft(['--check'], script),
  };
}
