import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import { familyOf } from '../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { NodeOptions, RunOptions } from '../config/settings.ts';
import { addressFamily } from '../netlink/core/address.ts';
import { NfTables } from '../netlink/nftables/tables.ts';
import { watchNftables } from '../netlink/nftables/watch.ts';
import { type NftCommand, nftCommand } from '../nft/command.ts';
import { NftBackend, type NftOptions } from '../nftables/backend.ts';
import { TABLE } from '../nftables/skeleton.ts';
import { UserError } from '../process/errors.ts';
import { type NodePortSelection, namesLoopback } from '../services/node-port-addresses.ts';
import { retireLocalnet } from '../takeover/localnet.ts';
import type { Takeover } from '../takeover/takeover.ts';
import { localDetector } from './iptables-mode.ts';
import type { Mode, OpenMode } from './mode.ts';
import { type NftablesSupport, nftablesSupport } from './nftables-support.ts';
import { IPV6_DISABLED } from './node-setup.ts';

/**
 * How long others' changes are not listened to after the first family has synced: for the other one,
 * and for kube-proxy's tables to go.
 */
const LOADING_MS = 10_000;

/**
 * `--proxy-mode nftables`. A family that the node cannot do is logged and left out.
 * @param support of the node, if somebody asked already.
 * @throws UserError when there is none.
 */
export async function openNftablesMode(
  options: RunOptions,
  log: Logger,
  support?: NftablesSupport,
): Promise<OpenMode> {
  const nft = nftCommand();
  const { families, missing } = support ?? (await nftablesSupport(nft));
  if (families.length === 0) {
    const reasons = [...new Set(missing.values())].join('; ');
    throw new UserError(`--proxy-mode nftables does not work on this node: ${reasons}`);
  }
  for (const family of IP_FAMILIES) {
    if (families.includes(family)) continue;
    const reason = missing.get(family) ?? IPV6_DISABLED;
    log.warn({ family, reason }, 'no nftables for this family on this node; it is left out');
  }
  const tables = new Map(families.map((family) => [family, new NfTables(family, TABLE)]));
  return {
    families,
    ports: [...tables.values()].map(({ port }) => port),
    start: async (podCidrs, otherPorts, takeover) =>
      start({ nft, options, tables, podCidrs, otherPorts, takeover, log }),
  };
}

/**
 * What `--init-only` does for this mode: sets back a sysctl of mode iptables, which the agent may not be
 * allowed to when it removes that mode's rules. Node ports on 127.0.0.1 end with that mode.
 */
export async function prepareNftables(_options: RunOptions, log: Logger): Promise<void> {
  try {
    if (await retireLocalnet())
      log.info('set route_localnet back to 0; only mode iptables needs it');
  } catch (error) {
    log.warn(
      { err: error },
      'cannot look for what mode iptables left; route_localnet stays as it is',
    );
  }
}

async function start({
  nft,
  options,
  tables,
  podCidrs,
  otherPorts,
  takeover,
  log,
}: {
  nft: NftCommand;
  options: RunOptions;
  tables: ReadonlyMap<IpFamily, NfTables>;
  podCidrs: readonly string[];
  otherPorts: readonly number[];
  takeover: Takeover;
  log: Logger;
}): Promise<Mode> {
  const backends = new Map<IpFamily, NftBackend>();
  for (const [family, table] of tables) {
    const onWarning = (message: string) => log.warn({ family }, message);
    const own = nftablesOptions(options, family, podCidrs, onWarning);
    backends.set(family, new NftBackend(table, nft, own));
  }
  const unsynced = new Set(tables.keys());
  const deletions: Promise<void>[] = [];
  const loaded = Promise.withResolvers<void>();
  return {
    backends: [...backends.values()],
    minSyncPeriod: options.nftablesMinSyncPeriod,
    resetsTcp: options.resetDeletedEndpointConnections,
    localhostProxyFamilies: [...tables.keys()].filter((family) =>
      namesLoopback(options.nodeportAddresses, family),
    ),
    afterFirstSync: (family) => {
      deletions.push(takeover.afterFirstSync(family));
      if (unsynced.size === tables.size) {
        // Not at once: a load takes the kernel twice as long while somebody listens, and for each chain
        // and rule of a table that is deleted it keeps 4 KiB. Nor never, if the other family fails.
        void Promise.race([loaded.promise, sleep(LOADING_MS, undefined, { ref: false })]).then(() =>
          watchOthers({ nft, tables, otherPorts, backends, log }),
        );
      }
      unsynced.delete(family);
      if (unsynced.size > 0) return;
      loaded.resolve(Promise.all(deletions).then(() => {}));
    },
  };
}

/** Has backends hear of what others do to their tables. */
function watchOthers({
  nft,
  tables,
  otherPorts,
  backends,
  log,
}: {
  nft: NftCommand;
  tables: ReadonlyMap<IpFamily, NfTables>;
  otherPorts: readonly number[];
  backends: ReadonlyMap<IpFamily, NftBackend>;
  log: Logger;
}): void {
  try {
    watchNftables({
      silencedPorts: [...[...tables.values()].map(({ port }) => port), ...otherPorts],
      ownPorts: () => nft.processIds,
      onChange: ({ family: number, table, kind, isNew }) => {
        const family = IP_FAMILIES.find((each) => addressFamily(each) === number);
        if (table !== TABLE || family === undefined) return;
        backends.get(family)?.disturbed(`${kind} ${isNew ? 'added' : 'deleted'} in table ${TABLE}`);
      },
      onOverrun: () => {
        for (const backend of backends.values()) backend.disturbed('some notifications were lost');
      },
    });
    for (const backend of backends.values()) backend.hearsOthers = true;
  } catch (error) {
    log.warn(
      { err: error },
      'cannot hear of changes of nf_tables; they are looked for now and then',
    );
  }
}

/** The nftables mode's options for one family, from the flags. */
export function nftablesOptions(
  options: NodeOptions,
  family: IpFamily,
  podCidrs: readonly string[],
  onWarning: (message: string) => void,
): NftOptions {
  return {
    family,
    masqueradeAll: options.masqueradeAll || options.nftablesMasqueradeAll,
    masqueradeBit: options.nftablesMasqueradeBit,
    localDetector: localDetector(options, family, podCidrs),
    resetsTcp: options.resetDeletedEndpointConnections,
    rejectsOnLocalhost: namesLoopback(options.nodeportAddresses, family),
    nodePortSelection: nodePortSelection(options),
    serviceCidrs: options.serviceCidrs.filter((cidr) => familyOf(cidr) === family),
    onWarning,
  };
}

/** As kube-proxy: in this mode, only the node's own address unless it is told. */
export function nodePortSelection({ nodeportAddresses }: NodeOptions): NodePortSelection {
  return nodeportAddresses.length === 0 ? ['primary'] : nodeportAddresses;
}
