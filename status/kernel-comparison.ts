/** Compares the agent's objects in the kernel with the desired objects, between two syncs. */
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import type { KernelObject } from './api/kernel.ts';
import type { StatusSources } from './sources.ts';

/** Attempts to compare without a sync in between. */
const MAX_ATTEMPTS = 4;

export interface KernelComparison {
  readonly objects: readonly KernelObject[];
  readonly compared: number;
  /** Number of further differences that a backend left out. */
  readonly omitted: number;
  /** false if a sync ended during every attempt, so that differences may be changes in progress. */
  readonly stable: boolean;
}

/** What to compare; undefined: all of them. */
export interface ComparisonScope {
  readonly family: IpFamily | undefined;
  readonly service: ObjectKey | undefined;
}

/** @throws errors of reading the kernel. */
export async function compareWithKernel(
  { backends, syncs }: Pick<StatusSources, 'backends' | 'syncs'>,
  { family, service }: ComparisonScope,
): Promise<KernelComparison> {
  for (let attempt = 1; ; attempt += 1) {
    const before = syncs.ended;
    const objects: KernelObject[] = [];
    let compared = 0;
    let omitted = 0;
    for (const backend of backends()) {
      if (family !== undefined && backend.family !== family) continue;
      const comparison = await backend.compare?.(service);
      compared += comparison?.compared ?? 0;
      omitted += comparison?.omitted ?? 0;
      for (const object of comparison?.objects ?? []) {
        objects.push({ family: backend.family, ...object });
      }
    }
    const isWaiting = backends().some(
      (backend) => syncs.family(backend.family).waitingSince !== undefined,
    );
    const stable = syncs.ended === before && !isWaiting;
    const hasDifference = objects.some(({ state }) => state !== 'ok');
    if (stable || !hasDifference || attempt === MAX_ATTEMPTS) {
      return { objects, compared, omitted, stable };
    }
  }
}
