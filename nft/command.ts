/** Runs the command nft to show chains of other programs. */
import { ProgramError, ProgramTimeoutError, runProgram } from '../process/run-program.ts';

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
