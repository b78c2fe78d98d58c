/** Parses upstream responses for use in answers of this server. */
import { decode, type Answer as PacketRecord } from 'dns-packet';
import { HEADER_LENGTH, RCODES, type Rcode } from './query.ts';
import { rcodeIn } from './response.ts';
import { TYPE } from './types.ts';
import { endOfName, recordOffsets } from './wire.ts';
import type { ResourceRecord } from './zone-answer.ts';

/** The upstream answer for a name. */
export interface UpstreamAnswer {
  readonly rcode: Rcode;
  readonly answers: readonly ResourceRecord[];
  /** SOA records, which carry the TTL of a negative answer. */
  readonly authorities: readonly ResourceRecord[];
}

/** Bytes of data in an address record, by type. */
const ADDRESS_LENGTHS: ReadonlyMap<number, number> = new Map([
  [TYPE.A, 4],
  [TYPE.AAAA, 16],
]);

/** A response cannot be used, or a query cannot be forwarded. */
export class BadResponseError extends Error {
  override readonly name = 'BadResponseError';
}

/**
 * Parses a resolver's response.
 * @throws BadResponseError if the response is malformed, or for an RCODE other than NOERROR and
 * NXDOMAIN.
 */
export function readUpstreamAnswer(bytes: Buffer): UpstreamAnswer {
  const code = rcodeIn(bytes);
  const rcode = code === RCODES.NXDOMAIN ? 'NXDOMAIN' : 'NOERROR';
  if (code !== RCODES[rcode])
    throw new BadResponseError(`the resolver answered with RCODE ${code}`);
  let message: ReturnType<typeof decode>;
  try {
    checkLengths(bytes);
    message = decode(bytes);
  } catch (error) {
    throw new BadResponseError("the resolver's response is malformed", { cause: error });
  }
  const answers = (message.answers ?? []).filter(isRecord);
  const soa = (message.authorities ?? []).filter(isRecord).filter(({ type }) => type === 'SOA');
  const all = [...answers, ...soa];
  if (!all.every(isAscii))
    throw new BadResponseError("the resolver's response has names with non-ASCII characters");
  return { rcode, answers, authorities: soa };
}

/**
 * Checks lengths that dns-packet ignores: it reads an address past the end of its record.
 * @throws RangeError
 */
function checkLengths(bytes: Buffer): void {
  let at: number | undefined = HEADER_LENGTH;
  for (let count = bytes.readUInt16BE(4); count > 0 && at !== undefined; count--) {
    const end = endOfName(bytes, at);
    at = end === undefined ? undefined : end + 4;
  }
  const count = [6, 8, 10].reduce((sum, offset) => sum + bytes.readUInt16BE(offset), 0);
  const records = at === undefined ? undefined : recordOffsets(bytes, at, count);
  if (records === undefined) throw new RangeError('a record exceeds the message');
  for (const { type, data, end } of records) {
    const length = end - data;
    if ((ADDRESS_LENGTHS.get(type) ?? length) !== length) {
      throw new RangeError(`address record with ${length} bytes of data, not 4 (A) or 16 (AAAA)`);
    }
  }
}

function isRecord(record: PacketRecord): record is ResourceRecord {
  return record.type !== 'OPT' && record.class === 'IN';
}

/**
 * dns-packet decodes names as UTF-8. Other bytes would be encoded differently and could make the
 * message longer.
 */
function isAscii(record: ResourceRecord): boolean {
  return /^[ -~]*$/.test(JSON.stringify(record));
}
