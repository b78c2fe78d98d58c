/** Reads what other servers answered, for answers of our own. */
import { decode, type Answer as PacketRecord } from 'dns-packet';
import type { ResourceRecord } from './answer.ts';
import { RCODES, type Rcode } from './query.ts';
import { rcodeIn } from './response.ts';

/** What other servers know of a name. */
export interface Resolution {
  readonly rcode: Rcode;
  readonly answers: readonly ResourceRecord[];
  /** The SOA that tells how long it may be kept that there is nothing. */
  readonly authorities: readonly ResourceRecord[];
}

/** No name needs more. */
const MAX_RECORDS = 100;

/** An answer that cannot be read, or tells of a failure. */
export class BadAnswer extends Error {
  override readonly name = 'BadAnswer';
}

/** @throws BadAnswer also for every code but those that tell of a name. */
export function readResolution(bytes: Buffer): Resolution {
  const code = rcodeIn(bytes);
  const rcode = code === RCODES.NXDOMAIN ? 'NXDOMAIN' : 'NOERROR';
  if (code !== RCODES[rcode]) throw new BadAnswer(`the resolver answered with code ${code}`);
  let message: ReturnType<typeof decode>;
  try {
    message = decode(bytes);
  } catch (error) {
    throw new BadAnswer('the answer of the resolver cannot be read', { cause: error });
  }
  const answers = (message.answers ?? []).filter(isRecord);
  const soa = (message.authorities ?? []).filter(isRecord).filter(({ type }) => type === 'SOA');
  const all = [...answers, ...soa];
  if (all.length > MAX_RECORDS) throw new BadAnswer('the resolver answered with too much');
  if (!all.every(isPlain))
    throw new BadAnswer('the resolver answered with names that are no ASCII');
  return { rcode, answers, authorities: soa };
}

function isRecord(record: PacketRecord): record is ResourceRecord {
  return record.type !== 'OPT' && record.class === 'IN';
}

/** dns-packet reads names as UTF-8; what is none would be written with other bytes, and too many. */
function isPlain(record: ResourceRecord): boolean {
  return /^[ -~]*$/.test(JSON.stringify(record));
}
