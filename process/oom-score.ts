/** The OOM score of this process. */
import { readFile, writeFile } from 'node:fs/promises';
import type { Log } from './log.ts';

const FILE = '/proc/self/oom_score_adj';

/** Sets how ready the kernel is to end this process when memory runs out (proc(5)). */
export async function setOomScore(score: number, log: Log): Promise<void> {
  try {
    if (Number(await readFile(FILE, 'utf8')) !== score) await writeFile(FILE, String(score));
  } catch (error) {
    // To lower it takes CAP_SYS_RESOURCE.
    log.warn(
      { score, reason: (error as Error).message },
      'cannot set the OOM score (--oom-score-adj)',
    );
  }
}
