import type { ApiObserver } from '../metrics/api-server.ts';
import type { Resource, SourceLog } from '../sources/kubernetes/reflector.ts';
import { lastPart } from '../sources/kubernetes/resources.ts';
import type { DebugLog } from './log.ts';
import { RepeatedFailures } from './repeated.ts';

/**
 * Wraps the log and the observer of a source so that lists and watches that keep failing are logged by
 * `RepeatedFailures`, per kind. A watch that opens, or a CRD that is not installed, ends the failure.
 */
export function tellRepeats(
  log: DebugLog,
  observer: ApiObserver,
  resources: readonly Resource[],
): { log: SourceLog; observer: ApiObserver } {
  const failures = new RepeatedFailures(log);
  const kinds = new Map(resources.map(({ kind, paths }) => [lastPart(paths[0]), kind]));
  const works = (resource: string) => {
    const kind = kinds.get(resource) ?? resource;
    failures.succeeded(kind, { kind }, 'list and watch work again');
  };
  return {
    log: {
      info: (details, message) => log.info(details, message),
      warn: (details, message) => {
        if ('kind' in details && 'err' in details) {
          failures.failed(String(details.kind), { ...details }, message);
        } else {
          log.warn(details, message);
        }
      },
    },
    observer: {
      ...observer,
      watching: (resource, isOpen) => {
        observer.watching(resource, isOpen);
        if (isOpen) works(resource);
      },
      absent: (resource) => {
        observer.absent(resource);
        works(resource);
      },
    },
  };
}
