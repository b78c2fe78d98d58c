import type { IpFamily } from '../api/objects.ts';
import type { EnforcerObserver } from '../policy/enforcer.ts';
import type { Log } from './log.ts';

export interface PolicyObserverOptions {
  readonly log: Log & { debug(details: object, message: string): void };
}

/** Turns what becomes of network policy into log lines. */
export function createPolicyObserver({ log }: PolicyObserverOptions): EnforcerObserver {
  const known = new Set<IpFamily>();
  const failing = new Set<IpFamily>();
  return {
    applied(family, isFull, milliseconds) {
      const seconds = milliseconds / 1000;
      log.debug({ family, full: isFull, seconds }, 'policies applied');
      if (failing.delete(family)) log.info({ family }, 'policies can be applied again');
      if (!known.has(family)) log.info({ family, seconds }, 'enforcing network policies');
      known.add(family);
    },
    failed(family, error) {
      failing.add(family);
      log.error(
        { family, err: error },
        'cannot apply network policies; what is enforced stays, trying again',
      );
    },
    disturbed(family, what) {
      log.warn({ family, what }, `somebody changed our policy table (${what}); writing it again`);
    },
    warned: (family, message) => log.warn({ family }, message),
    deaf: (error) =>
      log.warn(
        { err: error },
        'cannot hear of changes of nf_tables; policies that others remove are not written again',
      ),
  };
}
