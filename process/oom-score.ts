/** The OOM score adjustment of this process. */
import { readFile, writeFile } from 'node:fs/promises';
import type { Log } from './log.ts';

const FILE = '/proc/self/oom_score_adj';

/**
 * Sets `oom_score_adj` (proc(5)): how likely the kernel is to kill this process when memory runs
 * out.
 */
export async function setOomScore(score: number, log: Log): Promise<void> {
  try {
    if (Number(await readFile(FILE, 'utf8')) !== score) await writeFile(FILE, String(score));
  } catch (error) {
    // Lowering the score requires CAP_SYS_RESOURCE.
    log.warn(
      { flag: '--oom-score-adj', score, reason: (error as Error).message },
      'cannot set the OOM score',
    );
  }
}
