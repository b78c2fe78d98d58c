import type { Logger } from 'pino';
import { familyOf } from '../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { NodeOptions, RunOptions } from '../config/settings.ts';
import { addressFamily } from '../netlink/address.ts';
import { NfTables } from '../netlink/nftables.ts';
import { watchNftables } from '../netlink/nftables-watch.ts';
import { NftBackend, type NftOptions } from '../nftables/backend.ts';
import { type NftCommand, nftCommand } from '../nftables/command.ts';
import { declarations, PROBE_TABLE, standingChains, TABLE } from '../nftables/skeleton.ts';
import { UserError } from './errors.ts';
import { localDetector } from './iptables-mode.ts';
import type { Mode, OpenMode } from './mode.ts';
import { whyNot } from './node-setup.ts';

/** `--proxy-mode nftables`. */
export async function openNftablesMode(options: RunOptions, log: Logger): Promise<OpenMode> {
  const nft = nftCommand();
  const families: IpFamily[] = [];
  for (const family of IP_FAMILIES) {
    const reason = await whyNot(family, () => probe(nft, options, family));
    if (reason === undefined) families.push(family);
    else log.warn({ family, reason }, 'no nftables for this family on this node; it is left out');
  }
  if (families.length === 0) {
    throw new UserError(
      '--proxy-mode nftables does not work on this node for any IP family: it takes nft 1.0.1, ' +
        'a kernel of 5.13 with nf_tables, and CAP_NET_ADMIN',
    );
  }
  return {
    families,
    start: async (podCidrs) => start(nft, options, families, podCidrs, log),
  };
}

/** Has nft and the kernel look at all that the mode needs. @throws NftError */
async function probe(nft: NftCommand, options: NodeOptions, family: IpFamily): Promise<void> {
  const own = nftablesOptions(options, family, [], () => {});
  await nft.check(declarations(standingChains(own), family, PROBE_TABLE));
}

async function start(
  nft: NftCommand,
  options: RunOptions,
  families: readonly IpFamily[],
  podCidrs: readonly string[],
  log: Logger,
): Promise<Mode> {
  const tables = new Map(families.map((family) => [family, new NfTables(family, TABLE)]));
  const backends = new Map<IpFamily, NftBackend>();
  for (const [family, table] of tables) {
    const onWarning = (message: string) => log.warn({ family }, message);
    const own = nftablesOptions(options, family, podCidrs, onWarning);
    backends.set(family, new NftBackend(table, nft, own));
  }
  const unsynced = new Set(families);
  return {
    backends: [...backends.values()],
    minSyncPeriod: options.nftablesMinSyncPeriod,
    afterFirstSync: (family) => {
      unsynced.delete(family);
      // Not before: a load takes the kernel twice as long while somebody listens.
      if (unsynced.size === 0) watchOthers(nft, tables, backends, log);
    },
  };
}

/** Has backends hear of what others do to their tables. */
function watchOthers(
  nft: NftCommand,
  tables: ReadonlyMap<IpFamily, NfTables>,
  backends: ReadonlyMap<IpFamily, NftBackend>,
  log: Logger,
): void {
  try {
    watchNftables({
      silencedPorts: [...tables.values()].map(({ port }) => port),
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
  const { nodeportAddresses } = options;
  return {
    family,
    masqueradeAll: options.masqueradeAll || options.nftablesMasqueradeAll,
    masqueradeBit: options.nftablesMasqueradeBit,
    localDetector: localDetector(options, family, podCidrs),
    // As kube-proxy: in this mode, only the node's own address unless it is told.
    nodePortSelection: nodeportAddresses === 'all' ? 'primary' : nodeportAddresses,
    serviceCidrs: options.serviceCidrs.filter((cidr) => familyOf(cidr) === family),
    onWarning,
  };
}
