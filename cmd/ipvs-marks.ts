/** `portwide ipvs marks`: which Service each packet mark belongs to. */
import { existsSync } from 'node:fs';
import type { Command } from 'commander';
import { getOrCreate } from '../api/collections.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import { hex } from '../iptables/rule.ts';
import { kernelName } from '../ipvs/sets.ts';
import { ENOENT, hasErrno, UnsupportedError } from '../netlink/core/error.ts';
import { Ipsets } from '../netlink/ipset/ipset.ts';
import { requireNetAdmin } from '../process/capabilities.ts';
import { UserError } from '../process/errors.ts';

export function addIpvsCommand(program: Command): void {
  program
    .command('ipvs')
    .description('look into what --proxy-mode ipvs programmed on this node')
    .command('marks')
    .description('which Service each fwmark service of IPVS belongs to (`FWM` in ipvsadm -Ln)')
    .action(async () => {
      await requireNetAdmin('reading packet marks');
      const records = await listMarks();
      process.stdout.write(
        records === undefined || records.length === 0
          ? noMarksMessage({ hasIpvs: existsSync(IPVS_STATE), hasRecord: records !== undefined })
          : markTable(records),
      );
    });
}

/** Exists while the module ip_vs is loaded. */
const IPVS_STATE = '/proc/net/ip_vs';
const RECORD = 'KUBE-MARKS';

/** A packet mark and whose it is. */
interface MarkRecord {
  readonly mark: number;
  readonly family: IpFamily;
  /** Service and side, as `markOwner` of ipvs/compile.ts has it. */
  readonly owner: string;
  readonly vips: readonly string[];
}

/**
 * Read from the kernel, so that it needs no agent.
 * @returns undefined if there is no record of marks in either family.
 * @throws UserError, NetlinkError
 */
async function listMarks(): Promise<MarkRecord[] | undefined> {
  let sets: Ipsets;
  try {
    sets = await Ipsets.open();
  } catch (error) {
    if (!(error instanceof UnsupportedError)) throw error;
    const message = `${error.message}, so mode ipvs does not run here and there are no marks`;
    throw new UserError(message, { cause: error });
  }
  try {
    const records: MarkRecord[] = [];
    let hasRecord = false;
    for (const family of IP_FAMILIES) {
      const name = kernelName(RECORD, family);
      const vips = new Map<string, { mark: number; owner: string; vips: string[] }>();
      const entries = await sets.entries(name).catch((error: unknown) => {
        if (hasErrno(error, ENOENT)) return undefined;
        throw error;
      });
      if (entries === undefined) continue;
      hasRecord = true;
      for (const { ip = '', mark = 0, comment: owner = '' } of entries) {
        const record = getOrCreate(vips, `${mark} ${owner}`, () => ({ mark, owner, vips: [] }));
        record.vips.push(ip);
      }
      records.push(...[...vips.values()].map((record) => ({ ...record, family })));
    }
    return hasRecord ? records : undefined;
  } finally {
    await sets.close();
  }
}

/** Why there is nothing to list: an empty table would look like a failure to read. */
export function noMarksMessage(found: {
  readonly hasIpvs: boolean;
  readonly hasRecord: boolean;
}): string {
  const none = 'no packet marks of Portwide:';
  if (found.hasRecord) {
    return `${none} no Service has one. All-ports Services have, and those with listed ports and a traffic policy Local.\n`;
  }
  const ipvs = found.hasIpvs ? '' : `, and IPVS is not loaded on this node (no ${IPVS_STATE})`;
  return `${none} the ipset ${RECORD} does not exist${ipvs}. Only --proxy-mode=ipvs makes marks.\n`;
}

/** A table for people; marks as ipvsadm prints them (FWM, decimal) and as iptables does. */
function markTable(records: readonly MarkRecord[]): string {
  const sorted = records.toSorted(
    (a, b) => a.family.localeCompare(b.family) || a.owner.localeCompare(b.owner) || a.mark - b.mark,
  );
  const rows = sorted.map(({ mark, family, owner, vips }) => {
    const [service = '', ...rest] = owner.split(' ');
    return [String(mark), hex(mark), family, service, rest.at(-1) ?? '', vips.toSorted().join(',')];
  });
  const table = [['FWM', 'MARK', 'FAMILY', 'SERVICE', 'ENDPOINTS', 'VIPS'], ...rows];
  const widths = table[0]?.map((_, column) =>
    Math.max(...table.map((row) => row[column]?.length ?? 0)),
  );
  return table
    .map(
      (row) =>
        `${row
          .map((cell, column) => cell.padEnd(widths?.[column] ?? 0))
          .join('  ')
          .trimEnd()}\n`,
    )
    .join('');
}
