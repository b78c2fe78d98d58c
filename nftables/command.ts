import { ExecaError, execa } from 'execa';

/** Milliseconds after which nft counts as stuck; a script is all or nothing, also when it is ended. */
const TIMEOUT = 60_000;

/** nft refused a script. */
export class NftError extends Error {
  override readonly name = 'NftError';

  constructor(stderr: string, cause: unknown) {
    super(`nft failed: ${stderr.trim() || String(cause)}`, { cause });
  }
}

/** Runs scripts of nft, each of which is one transaction. */
export interface NftCommand {
  /** Of the last that ran: what it changes bears its number, in notifications. */
  readonly processIds: ReadonlySet<number>;
  /** @throws NftError; nothing was changed then. */
  run(script: string): Promise<void>;
  /** Whether nft and the kernel would take it; nothing is changed. @throws NftError when not. */
  check(script: string): Promise<void>;
}

/** More than that many do not wait to be heard of. */
const MAX_PROCESS_IDS = 16;

export function nftCommand(): NftCommand {
  const processIds = new Set<number>();
  const nft = async (options: readonly string[], input: string) => {
    const process = execa('nft', [...options, '-f', '-'], { input, timeout: TIMEOUT });
    if (process.pid !== undefined) processIds.add(process.pid);
    const [oldest = 0] = processIds;
    if (processIds.size > MAX_PROCESS_IDS) processIds.delete(oldest);
    try {
      await process;
    } catch (error) {
      throw new NftError(error instanceof ExecaError ? String(error.stderr ?? '') : '', error);
    }
  };
  return {
    processIds,
    run: (script) => nft([], script),
    check: (script) => nft(['--check'], script),
  };
}
