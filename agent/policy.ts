/** Network policy in a running agent. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import {
  type ApiObject,
  IP_FAMILIES,
  type IpFamily,
  type Kind,
  POLICY_KINDS,
} from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import type { Events } from '../events/recorder.ts';
import { definer } from '../metrics/define.ts';
import { type PolicySources, policyMetrics } from '../metrics/policy.ts';
import { type NftCommand, nftCommand } from '../nft/command.ts';
import type { NftMonitor } from '../nft/monitor.ts';
import { probeScript } from '../policy/compile/skeleton.ts';
import { Enforcer } from '../policy/enforce/enforcer.ts';
import { PolicyModel } from '../policy/model/model.ts';
import { DIRECTIONS } from '../policy/model/shape.ts';
import { UserError } from '../process/errors.ts';
import type { Log } from '../process/log.ts';
import type { ObjectSink } from '../sources/store.ts';
import { systemTimers } from '../sync/timers.ts';
import { nftablesSupport } from './nftables-support.ts';
import { PolicyFaults } from './policy-faults.ts';
import { PolicyNames, type PolicyNamesOptions, queueDrops } from './policy-names.ts';
import { createPolicyObserver, tellOfFaults } from './policy-observer.ts';

/** A node that can enforce policies; nothing is programmed yet. */
export interface OpenPolicy {
  readonly families: readonly IpFamily[];
  readonly nft: NftCommand;
}

/**
 * `--network-policy`. Unlike a mode of serving, it leaves out no family but those that the node has
 * disabled: a pod would be open in the other.
 * @throws UserError with what the node lacks.
 */
export async function openPolicy({ policyLogGroup: logGroup }: RunOptions): Promise<OpenPolicy> {
  const nft = nftCommand();
  const { families, missing } = await nftablesSupport(nft, (family) =>
    probeScript({ family, logGroup }),
  );
  const lacks = IP_FAMILIES.flatMap((family) => {
    const reason = missing.get(family);
    return reason === undefined ? [] : [`${family}: ${reason}`];
  });
  if (lacks.length > 0) {
    throw new UserError(`--network-policy does not work on this node: ${lacks.join('; ')}`);
  }
  return { families, nft };
}

/** What network policy goes by: Nodes too, which are peers. */
const KINDS: readonly Kind[] = [...POLICY_KINDS, 'Node'];

export interface PolicyOptions {
  readonly open: OpenPolicy;
  readonly options: Pick<RunOptions, 'policyLogGroup'> & PolicyNamesOptions['options'];
  readonly nodeName: string;
  readonly monitor: NftMonitor;
  readonly registry: Registry;
  readonly log: Logger;
  readonly events: Events;
  /** How many objects of a kind cannot be read as they are now. */
  readonly unreadable: () => ReadonlyMap<string, number>;
}

/** Network policy at work. */
export interface PolicyAgent {
  /** Takes objects of all kinds. Enforcing begins when all that matter here are synced. */
  readonly sink: ObjectSink;
  /** What is enforced stays so. */
  stop(): Promise<void>;
}

/** Collects objects from now on. @throws NetlinkError */
export function startPolicy(options: PolicyOptions): PolicyAgent {
  const { open, nodeName, monitor, log, events, unreadable } = options;
  const { families, nft } = open;
  const model = new PolicyModel({ nodeName, families, onChange: () => enforcer.changed() });
  const faults = new PolicyFaults(tellOfFaults(log, events));
  const names = new PolicyNames({
    families,
    options: options.options,
    enforcer: () => enforcer,
    log,
  });
  const metrics = policyMetrics(
    definer(options.registry),
    policySources({ families, model, faults, unreadable, names, enforcer: () => enforcer, log }),
    families,
  );
  const observer = createPolicyObserver({ log, metrics, events, nodeName });
  const enforcer = new Enforcer({
    families,
    source: {
      takeChanges: () => {
        const changes = model.takeChanges();
        // Ahead of the changes in the backends' turns: lists that come with them have what is known.
        if (changes.length > 0) names.setNames(model.domainNames());
        return changes;
      },
      all: (family) => model.all(family),
      learned: (family) => names.learned(family),
    },
    observer: {
      ...observer,
      disturbed: (family, what) => {
        observer.disturbed(family, what);
        // `nft flush ruleset` takes rules of iptables-nft, too.
        names.mend();
      },
    },
    nft,
    timers: systemTimers,
    logGroup: options.options.policyLogGroup,
    monitor,
  });
  const unsynced = new Set<Kind>(KINDS);
  const sink: ObjectSink = {
    upsert(object) {
      names.sink.upsert(object);
      faults.upsert(object);
      if (isPolicyObject(object)) model.upsert(object);
    },
    remove(kind, key) {
      names.sink.remove(kind, key);
      faults.remove(kind, key);
      if (isPolicyKind(kind)) model.remove(kind, key);
    },
    synced(kind) {
      if (!unsynced.delete(kind) || unsynced.size > 0) return;
      void Promise.all([names.restore(model.domainNames()), model.prepare()]).then(() =>
        enforcer.start(),
      );
    },
  };
  return {
    sink,
    stop: async () => {
      // First who writes by the other.
      await names.close();
      await enforcer.stop();
    },
  };
}

function policySources({
  families,
  model,
  faults,
  unreadable,
  names,
  enforcer,
  log,
}: {
  families: readonly IpFamily[];
  model: PolicyModel;
  faults: PolicyFaults;
  unreadable: PolicyOptions['unreadable'];
  names: PolicyNames;
  enforcer: () => Enforcer;
  log: Log;
}): PolicySources {
  return {
    policies: () => faults.counts(),
    unreadable: () => {
      const counts = unreadable();
      return POLICY_KINDS.map((kind) => ({ kind, count: counts.get(kind) ?? 0 }));
    },
    profiles: () => {
      const [family = 'IPv4'] = families;
      const { chains } = model.all(family);
      return DIRECTIONS.map((direction) => ({
        direction,
        count: chains.filter((chain) => chain.direction === direction).length,
      }));
    },
    elements: () =>
      families.flatMap((family) =>
        [...enforcer().sizes(family)].map(([set, count]) => ({ family, set, count })),
      ),
    names: () => names.numbers(),
    queueDrops,
    denied: async () => {
      try {
        return [...(await enforcer().denied())].flatMap(([family, counts]) =>
          counts.map(({ denial, direction, packets }) => ({
            family,
            tier: denial.slice('deny-'.length),
            direction,
            count: packets,
          })),
        );
      } catch (error) {
        log.warn({ err: error }, 'cannot read how many packets policies denied');
        return [];
      }
    },
  };
}

type PolicySubject = Parameters<PolicyModel['upsert']>[0];

export function isPolicyObject(object: ApiObject): object is PolicySubject {
  return isPolicyKind(object.kind);
}

function isPolicyKind(kind: Kind): kind is PolicySubject['kind'] {
  return KINDS.includes(kind);
}
