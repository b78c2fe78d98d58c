/** `portwide ipvs marks`: the Service of each packet mark. */
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
import { failsWithTwo } from './usage.ts';

export function addIpvsCommand(program: Command): void {
  failsWithTwo(program.command('ipvs'))
    .description('inspect the IPVS state of this node (--proxy-mode=ipvs)')
    .command('marks')
    .description('list the Service of each IPVS fwmark service (`FWM` in ipvsadm -Ln)')
    .action(async () => {
      await requireNetAdmin('portwide ipvs marks');
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
/** The ipset of marks; `kernelName` gives its name in a family. */
const MARK_SET = 'KUBE-MARKS';

/** A packet mark and its Service. */
interface MarkRecord {
  readonly mark: number;
  readonly family: IpFamily;
  /** Service and endpoints (cluster or local), the comment that `markOwner` of ipvs/compile.ts writes. */
  readonly owner: string;
  readonly vips: readonly string[];
}

/**
 * Reads the marks and their Services from the kernel, so that no agent needs to run.
 * @returns undefined if the ipset of marks exists in neither family.
 * @throws UserError, NetlinkError
 */
async function listMarks(): Promise<MarkRecord[] | undefined> {
  let sets: Ipsets;
  try {
    sets = await Ipsets.open();
  } catch (error) {
    if (!(error instanceof UnsupportedError)) throw error;
    const message = `${error.message}: mode ipvs does not run on this node, so there are no marks`;
    throw new UserError(message, { cause: error });
  }
  try {
    const records: MarkRecord[] = [];
    let hasRecord = false;
    for (const family of IP_FAMILIES) {
      const name = kernelName(MARK_SET, family);
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

/** Explains an empty list. */
export function noMarksMessage(found: {
  readonly hasIpvs: boolean;
  readonly hasRecord: boolean;
}): string {
  const none = 'no packet marks of Portwide:';
  if (found.hasRecord) {
    return `${none} no Service needs a mark. All-ports Services need marks, and Services with listed ports and traffic policy Local.\n`;
  }
  const ipvs = found.hasIpvs ? '' : `, and IPVS is not loaded on this node (no ${IPVS_STATE})`;
  return `${none} the ipset ${MARK_SET} does not exist${ipvs}. Only --proxy-mode=ipvs creates it.\n`;
}

/** Formats a table with each mark as ipvsadm prints it (FWM, decimal) and as iptables does (hexadecimal). */
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
