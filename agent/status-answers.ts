/** Answers of the status API: connects its resources to the parts of the agent. */
import type { RequestListener } from 'node:http';
import { release } from 'node:os';
import { getOrCreate } from '../api/collections.ts';
import type { Kind } from '../api/objects.ts';
import type { ProxyMode } from '../config/node-settings.ts';
import { VERSION } from '../process/version.ts';
import type { Backend } from '../proxier/backend.ts';
import type { KernelFeature } from '../status/api/node-status.ts';
import { statusHandler } from '../status/http/handler.ts';
import { RequestBudget } from '../status/http/request-budget.ts';
import { pageResources } from '../status/page-resources.ts';
import { statusResources } from '../status/resources.ts';
import type { StatusSources } from '../status/sources.ts';
import { createTraffic } from '../status/traffic/traffic.ts';
import { syncPrecedence } from '../sync/precedence.ts';
import { systemTimers } from '../sync/timers.ts';
import { nodePortAddresses } from '../traffic/options.ts';
import type { AgentContext } from './context.ts';
import { keepAgedAnswer } from './kept-answer.ts';
import { kernelFeatures } from './kernel-features.ts';
import type { ModeWarning } from './mode.ts';
import { nodeChecks, runChecks } from './node-checks.ts';
import { disabledForwarding } from './node-setup.ts';
import { readBoundedChains } from './preflight/bounded-rules.ts';
import { fact } from './preflight/fact.ts';
import type { StatusActivity } from './status.ts';

/** Milliseconds for which rules of other programs are kept: the page computes a trace each second. */
const RULES_AGE = 1000;

/** What the answers need besides the context. */
export interface StatusInputs {
  readonly kinds: readonly Kind[];
  readonly missingInputs: () => readonly string[];
  readonly sourceFaults: StatusSources['sourceFaults'];
  readonly unboundHealthPorts: StatusSources['unboundHealthPorts'];
  readonly remainingState: StatusSources['remainingState'];
  /** The backends of the started mode; empty before. */
  readonly backends: () => readonly Backend[];
  /** See `StartedMode`; empty before. */
  readonly modeFeatures: () => readonly KernelFeature[];
  /** undefined without network policy. */
  readonly policy: StatusSources['policy'];
}

export interface StatusAnswers {
  /** @param bindHost the address on which the server listens; undefined for the Unix socket. */
  handler(bindHost: string | undefined): RequestListener;
  /** Ends streams, and stops reading the kernel. */
  close(): Promise<void>;
}

export function createStatusAnswers(context: AgentContext, inputs: StatusInputs): StatusAnswers {
  const { options, table, nodeName, modeDefinition, supportedMode, status, log } = context;
  const traffic = createTraffic({
    modeTraffic: modeDefinition.traffic,
    families: supportedMode.families,
    routes: {
      routes: () => table.routes(),
      ofService: (service) => table.inspect(service)?.routes ?? [],
      watch: (listener) => table.watchRoutes(listener),
    },
    isNodePortAddress: nodePortAddressTest(context),
    nodeAddresses: () => [...table.nodeAddresses],
    policyLogGroup: options.networkPolicy ? options.policyLogGroup : undefined,
    policies: inputs.policy,
    timers: systemTimers,
    onError: (err) => log.debug({ err }, 'cannot read the traffic of Services; retrying'),
  });
  const answers = statusResources({
    version: VERSION,
    nodeName,
    startedAt: Math.round(performance.timeOrigin),
    statusSocket: options.statusSocket,
    mode: {
      name: modeDefinition.name,
      reason: modeReason(options.proxyMode, modeDefinition.warning),
    },
    manifests: options.manifests,
    families: supportedMode.families,
    table,
    nodeAddresses: () => [...table.nodeAddresses],
    ...inputs,
    ...status,
    traffic,
    kernelFeatures: async () => [...(await kernelFeatures()), ...inputs.modeFeatures()],
    kernelRelease: release(),
    foreignChains: keepAgedAnswer(() => fact(readBoundedChains), RULES_AGE),
    disabledForwarding,
    nodeChecks: nodeChecks(() => runChecks(context.texts)),
  });
  const resources = { ...answers, ...pageResources() };
  const handlers = new Map<string | undefined, RequestListener>();
  return {
    handler: (bindHost) =>
      getOrCreate(handlers, bindHost, () =>
        statusHandler({
          resources,
          bindHost,
          statusSocket: options.statusSocket,
          // One each: requests to the address, which every process can send, must not hold up root at the socket.
          budget: new RequestBudget(systemTimers, syncPrecedence),
          onError: (err, path) => log.warn({ err, path }, 'status API cannot answer a request'),
        }),
      ),
    close: () => traffic.close(),
  };
}

/** Whether node ports are served on an address. The test is called for each connection. */
function nodePortAddressTest({ nodePorts, status }: AgentContext): (address: string) => boolean {
  let from: StatusActivity['syncs']['nodeAddresses'] | undefined;
  let served: ReadonlySet<string> = new Set();
  return (address) => {
    const { nodeAddresses } = status.syncs;
    if (nodeAddresses !== from) {
      from = nodeAddresses;
      served = new Set(
        [...nodeAddresses].flatMap(([family, own]) => {
          const listed = nodePortAddresses({ nodePortSelection: nodePorts, family }, own, true);
          return listed === 'all' ? own.addresses : listed;
        }),
      );
    }
    return served.has(address);
  };
}

function modeReason(flag: ProxyMode | undefined, warning: ModeWarning | undefined): string {
  if (warning !== undefined) return warning.message;
  return flag === undefined
    ? 'the best mode that this node supports; --proxy-mode is unset'
    : `--proxy-mode=${flag}`;
}
