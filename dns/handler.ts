/** From a query's bytes to its answer's. Knows no sockets. */

import { AnswerCache, type Lookups } from './answer-cache.ts';
import { type Forwarder, rcodeOf } from './forward.ts';
import { CLASS_IN, type DnsQuery, RCODES, readQuery, type Transport } from './query.ts';
import {
  type AnswerSections,
  type EncodedAnswer,
  encodeAnswer,
  encodeError,
  encodeResponse,
  FLAG,
  MAX_TCP_LENGTH,
  MAX_UDP_LENGTH,
  PLAIN_UDP_LENGTH,
  rcodeIn,
} from './response.ts';
import type { UpstreamAnswer } from './upstream-answer.ts';
import {
  type Authority,
  answerFromZone,
  type ZoneAnswer,
  type ZoneView,
  zoneOf,
} from './zone-answer.ts';

/** A query that came and what became of it. */
export interface HandledQuery {
  readonly transport: Transport;
  /** The zone that the name is in; empty for all other domains; undefined: it could not be read. */
  readonly zone: string | undefined;
  /** Undefined when it could not be read. */
  readonly query: DnsQuery | undefined;
  /** The number in the answer, of the OPT record's part too where it is ours. */
  readonly rcode: number;
  /** Who answered; neither when it was an error of the server's own. */
  readonly by: 'zone' | 'forward' | undefined;
  readonly requestLength: number;
  readonly responseLength: number;
}

type Upstream = Pick<Forwarder, 'ask' | 'resolve'>;

export interface HandlerOptions {
  readonly authority: Authority;
  /** Where other domains are asked for; undefined: they are refused. */
  readonly forwarder?: Upstream | undefined;
  /** The handler failed: a mistake in it. The client gets SERVFAIL. */
  readonly onInternalError: (error: unknown) => void;
}

export interface HandlerResult {
  /** Undefined: nothing is to be said. */
  readonly response: Buffer | undefined;
  readonly served: HandledQuery | undefined;
}

/** At once, unless somebody else has to be asked; never throws or rejects. */
export type QueryHandler = (
  bytes: Buffer,
  transport: Transport,
) => HandlerResult | Promise<HandlerResult>;

/** Bytes: a pointer to the name, what all records have, an IPv4 address. */
const SHORTEST_RECORD = 16;
const NO_RESPONSE: HandlerResult = { response: undefined, served: undefined };

export function createHandler({
  authority,
  forwarder,
  onInternalError: onMistake,
}: HandlerOptions): QueryHandler {
  const { random, zone: records } = authority;
  const recursionAvailable = forwarder !== undefined;
  const { clusterDomain } = records;
  const cache = new AnswerCache();

  return (bytes, transport) => {
    const query = readQuery(bytes);
    if (query === undefined) return NO_RESPONSE;
    if (!('name' in query)) {
      const served = { transport, zone: undefined, query: undefined, by: undefined };
      return handled(bytes, encodeError(query), { ...served, rcode: RCODES[query.rcode] });
    }
    const zone = zoneOf(query.name, clusterDomain) ?? '';
    const tell = (response: Buffer, rcode: number, by: HandledQuery['by']) =>
      handled(bytes, response, { transport, zone, query, rcode, by });
    const limit = maxResponseLength(query, transport);
    const send = (encoded: EncodedAnswer, by: HandledQuery['by']) => {
      const response = encodeResponse(query, encoded, { recursionAvailable, limit, random });
      return tell(response, RCODES[encoded.rcode], by);
    };
    const write = (
      said: Pick<AnswerSections, 'rcode'> & Partial<AnswerSections>,
      by: HandledQuery['by'],
    ) => send(encodeAnswer(query.question, { ...EMPTY, ...said }), by);
    const fail = (error: unknown) => {
      onMistake(error);
      return write({ rcode: 'SERVFAIL' }, undefined);
    };
    try {
      const known = isPlain(query) ? cache.get(query, records) : undefined;
      if (known !== undefined) return send(known, 'zone');
      const { view, lookups } = recordLookups(records);
      const said = answerFromZone(query, { ...authority, zone: view }, maxRecordsIn(limit));
      if (said?.isCacheable) {
        const encoded = encodeAnswer(query.question, said);
        cache.set(query, encoded, lookups, view.serial);
        return send(encoded, 'zone');
      }
      if (said !== undefined && (said.externalTarget === undefined || forwarder === undefined)) {
        return write(said, said.authoritative ? 'zone' : undefined);
      }
      if (forwarder === undefined) return write({ rcode: 'REFUSED' }, undefined);
      const by = said === undefined ? 'forward' : 'zone';
      const asked =
        said?.externalTarget === undefined
          ? relay(forwarder, query, bytes, transport).then((response) =>
              tell(response, rcodeIn(response), by),
            )
          : forwarder
              .resolve(said.externalTarget, query.type)
              .then((resolution) =>
                write(appendUpstream(said, resolution, maxRecordsIn(limit)), by),
              );
      return asked.catch((error) => write({ rcode: rcodeOf(error) }, by)).catch(fail);
    } catch (error) {
      return fail(error);
    }
  };
}

const EMPTY = { authoritative: false, answers: [], authorities: [], additionals: [] };

/** The zone as it is now, and what is looked up in it. */
function recordLookups(zone: ZoneView): { readonly view: ZoneView; readonly lookups: Lookups } {
  const lookups = new Map<string, ReturnType<ZoneView['lookup']>>();
  const lookup = (name: string) => {
    const found = zone.lookup(name);
    lookups.set(name, found);
    return found;
  };
  const { clusterDomain, isSynced, serial } = zone;
  return { view: { clusterDomain, isSynced, serial, lookup }, lookups };
}

function handled(
  request: Buffer,
  response: Buffer,
  served: Omit<HandledQuery, 'requestLength' | 'responseLength'>,
): HandlerResult {
  const lengths = { requestLength: request.length, responseLength: response.length };
  return { response, served: { ...served, ...lengths } };
}

/** One more than can be in a message, so that it is told that some are missing. */
function maxRecordsIn(length: number): number {
  return Math.ceil(length / SHORTEST_RECORD) + 1;
}

/** Whether name and type alone say what is asked for. */
function isPlain(query: DnsQuery): boolean {
  return query.class === CLASS_IN && (query.edns?.version ?? 0) === 0;
}

/** The longest answer that a client takes, in bytes. */
function maxResponseLength({ edns }: DnsQuery, transport: Transport): number {
  if (transport === 'tcp') return MAX_TCP_LENGTH;
  if (edns === undefined) return PLAIN_UDP_LENGTH;
  return Math.max(PLAIN_UDP_LENGTH, Math.min(edns.size, MAX_UDP_LENGTH));
}

/**
 * An alias into another domain, with the records that other servers have for its target.
 * @param maxRecords more records than fit into the client's message are not encoded.
 */
function appendUpstream(
  said: ZoneAnswer,
  { rcode, answers, authorities }: UpstreamAnswer,
  maxRecords: number,
): AnswerSections {
  const { authoritative, additionals } = said;
  return {
    rcode,
    authoritative,
    answers: [...said.answers, ...answers.slice(0, maxRecords)],
    authorities,
    additionals,
  };
}

/**
 * Has another server answer. Query and answer pass as they are (RFC 5625), so what the client says of
 * itself, and of DNSSEC, gets there.
 */
async function relay(
  forwarder: Upstream,
  query: DnsQuery,
  bytes: Buffer,
  transport: Transport,
): Promise<Buffer> {
  const response = await forwarder.ask(bytes, query, transport);
  response.writeUInt16BE(query.id, 0);
  const limit = maxResponseLength(query, transport);
  return response.length <= limit ? response : truncated(query, limit);
}

/** Nothing but what it takes for the client to ask by TCP. */
function truncated(query: DnsQuery, limit: number): Buffer {
  const nothing = encodeAnswer(query.question, { ...EMPTY, rcode: 'NOERROR' });
  const options = { recursionAvailable: true, limit, random: () => 0 };
  const response = encodeResponse(query, nothing, options);
  response.writeUInt16BE(response.readUInt16BE(2) | FLAG.TC, 2);
  return response;
}
