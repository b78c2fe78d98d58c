/** Reads what other servers answered, for answers of our own. */
import { decode, type Answer as PacketRecord } from 'dns-packet';
import { HEADER_LENGTH, RCODES, type Rcode } from './query.ts';
import { rcodeIn } from './response.ts';
import { TYPE } from './types.ts';
import { endOfName, recordOffsets } from './wire.ts';
import type { ResourceRecord } from './zone-answer.ts';

/** What other servers know of a name. */
export interface UpstreamAnswer {
  readonly rcode: Rcode;
  readonly answers: readonly ResourceRecord[];
  /** The SOA that tells how long it may be kept that there is nothing. */
  readonly authorities: readonly ResourceRecord[];
}

/** Bytes. */
const ADDRESS_LENGTHS: ReadonlyMap<number, number> = new Map([
  [TYPE.A, 4],
  [TYPE.AAAA, 16],
]);

/** An answer that cannot be read, or tells of a failure. */
export class BadAnswer extends Error {
  override readonly name = 'BadAnswer';
}

/** @throws BadAnswer also for every code but those that tell of a name. */
export function readUpstreamAnswer(bytes: Buffer): UpstreamAnswer {
  const code = rcodeIn(bytes);
  const rcode = code === RCODES.NXDOMAIN ? 'NXDOMAIN' : 'NOERROR';
  if (code !== RCODES[rcode]) throw new BadAnswer(`the resolver answered with code ${code}`);
  let message: ReturnType<typeof decode>;
  try {
    checkLengths(bytes);
    message = decode(bytes);
  } catch (error) {
    throw new BadAnswer('the answer of the resolver cannot be read', { cause: error });
  }
  const answers = (message.answers ?? []).filter(isRecord);
  const soa = (message.authorities ?? []).filter(isRecord).filter(({ type }) => type === 'SOA');
  const all = [...answers, ...soa];
  if (!all.every(isAscii))
    throw new BadAnswer('the resolver answered with names that are no ASCII');
  return { rcode, answers, authorities: soa };
}

/**
 * What dns-packet does not look at: it makes addresses of bytes that are not there.
 * @throws RangeError
 */
function checkLengths(bytes: Buffer): void {
  let at: number | undefined = HEADER_LENGTH;
  for (let count = bytes.readUInt16BE(4); count > 0 && at !== undefined; count--) {
    const end = endOfName(bytes, at);
    at = end === undefined ? undefined : end + 4;
  }
  const count = [6, 8, 10].reduce((sum, place) => sum + bytes.readUInt16BE(place), 0);
  const places = at === undefined ? undefined : recordOffsets(bytes, at, count);
  if (places === undefined) throw new RangeError('a record goes on beyond the end');
  for (const { type, data, end } of places) {
    const length = end - data;
    if ((ADDRESS_LENGTHS.get(type) ?? length) !== length) {
      throw new RangeError(`an address of ${length} bytes`);
    }
  }
}

function isRecord(record: PacketRecord): record is ResourceRecord {
  return record.type !== 'OPT' && record.class === 'IN';
}

/** dns-packet reads names as UTF-8; what is none would be written with other bytes, and too many. */
function isAscii(record: ResourceRecord): boolean {
  return /^[ -~]*$/.test(JSON.stringify(record));
}
