/** Turns a query message into a response message. Does no I/O itself. */

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
import { TYPE } from './types.ts';
import type { UpstreamAnswer } from './upstream-answer.ts';
import {
  type Authority,
  answerFromZone,
  type ZoneAnswer,
  type ZoneView,
  zoneOf,
} from './zone-answer.ts';

/** A query that was received, and how it was answered. */
export interface HandledQuery {
  readonly transport: Transport;
  /** Zone of the name; empty for all other domains; undefined if the query could not be parsed. */
  readonly zone: string | undefined;
  /** Undefined if the query could not be parsed. */
  readonly query: DnsQuery | undefined;
  /**
   * RCODE of the response. For a relayed response, only the four bits in the header.
   */
  readonly rcode: number;
  /** Source of the answer. Undefined for errors of this server, except a failure of forwarding. */
  readonly by: 'zone' | 'forward' | undefined;
  readonly requestLength: number;
  readonly responseLength: number;
}

type Upstream = Pick<Forwarder, 'ask' | 'resolve'>;

export interface HandlerOptions {
  readonly authority: Authority;
  /** Upstream resolvers for other domains; if undefined, queries for other domains are refused. */
  readonly forwarder?: Upstream | undefined;
  /** Called on an internal error of the handler. The client gets SERVFAIL. */
  readonly onInternalError: (error: unknown) => void;
}

export interface HandlerResult {
  /** Undefined if the query gets no response. */
  readonly response: Buffer | undefined;
  readonly served: HandledQuery | undefined;
}

/** Answers synchronously from the zone; forwarding returns a promise. Never throws or rejects. */
export type QueryHandler = (
  bytes: Buffer,
  transport: Transport,
) => HandlerResult | Promise<HandlerResult>;

/** Bytes of an A record: a compression pointer, the fixed record fields, an IPv4 address. */
const SHORTEST_RECORD = 16;
/**
 * Bytes of an SRV record of the zone, without the cluster domain: a compression pointer, the fixed
 * fields of record and data, and the uncompressed name of a Service.
 */
const SHORTEST_SRV_RECORD = 2 + 10 + 6 + 'a.b.svc.'.length + 2;
const NO_RESPONSE: HandlerResult = { response: undefined, served: undefined };

export function createHandler({
  authority,
  forwarder,
  onInternalError,
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
    const respond = (response: Buffer, rcode: number, by: HandledQuery['by']) =>
      handled(bytes, response, { transport, zone, query, rcode, by });
    const limit = maxResponseLength(query, transport);
    const send = (encoded: EncodedAnswer, by: HandledQuery['by']) => {
      const response = encodeResponse(query, encoded, { recursionAvailable, limit, random });
      return respond(response, RCODES[encoded.rcode], by);
    };
    const write = (
      sections: Pick<AnswerSections, 'rcode'> & Partial<AnswerSections>,
      by: HandledQuery['by'],
    ) => send(encodeAnswer(query.question, { ...EMPTY, ...sections }), by);
    const fail = (error: unknown) => {
      onInternalError(error);
      return write({ rcode: 'SERVFAIL' }, undefined);
    };
    try {
      const cached = isPlain(query) ? cache.get(query, records) : undefined;
      if (cached !== undefined) return send(cached, 'zone');
      const { view, lookups } = recordLookups(records);
      const isSrv = query.type === TYPE.SRV;
      const shortest = isSrv ? SHORTEST_SRV_RECORD + clusterDomain.length : SHORTEST_RECORD;
      const maxRecords = maxRecordsIn(limit, shortest);
      const zoneAnswer = answerFromZone(query, { ...authority, zone: view }, maxRecords);
      if (zoneAnswer?.isCacheable) {
        const encoded = encodeAnswer(query.question, zoneAnswer);
        cache.set(query, encoded, lookups, view.serial);
        return send(encoded, 'zone');
      }
      if (
        zoneAnswer !== undefined &&
        (zoneAnswer.externalTarget === undefined || forwarder === undefined)
      ) {
        return write(zoneAnswer, zoneAnswer.authoritative ? 'zone' : undefined);
      }
      if (forwarder === undefined) return write({ rcode: 'REFUSED' }, undefined);
      const by = zoneAnswer === undefined ? 'forward' : 'zone';
      const pending =
        zoneAnswer?.externalTarget === undefined
          ? relay(forwarder, query, bytes, transport).then((response) =>
              respond(response, rcodeIn(response), by),
            )
          : forwarder
              .resolve(zoneAnswer.externalTarget, query.type)
              .then((upstream) =>
                write(
                  appendUpstream(zoneAnswer, upstream, maxRecordsIn(limit, SHORTEST_RECORD)),
                  by,
                ),
              );
      return pending.catch((error) => write({ rcode: rcodeOf(error) }, by)).catch(fail);
    } catch (error) {
      return fail(error);
    }
  };
}

const EMPTY = { authoritative: false, answers: [], authorities: [], additionals: [] };

/** A view of the zone that records all lookups, for the answer cache. */
function recordLookups(zone: ZoneView): { readonly view: ZoneView; readonly lookups: Lookups } {
  const lookups = new Map<string, ReturnType<ZoneView['lookup']>>();
  const lookup = (name: string, mostSrv?: number) => {
    const found = zone.lookup(name, mostSrv);
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

/** One more record than fits in a message, so that the response is marked as truncated. */
function maxRecordsIn(length: number, shortest: number): number {
  return Math.ceil(length / shortest) + 1;
}

/** Whether the answer depends only on name and type, so that a cached answer may be used. */
function isPlain(query: DnsQuery): boolean {
  return query.class === CLASS_IN && (query.edns?.version ?? 0) === 0;
}

/** Longest response that the client accepts, in bytes. */
function maxResponseLength({ edns }: DnsQuery, transport: Transport): number {
  if (transport === 'tcp') return MAX_TCP_LENGTH;
  if (edns === undefined) return PLAIN_UDP_LENGTH;
  return Math.max(PLAIN_UDP_LENGTH, Math.min(edns.size, MAX_UDP_LENGTH));
}

/**
 * Completes an alias into another domain with the upstream answer for its target.
 * @param maxRecords upper bound on records that fit in the client's message; the rest are skipped.
 */
function appendUpstream(
  zoneAnswer: ZoneAnswer,
  { rcode, answers, authorities }: UpstreamAnswer,
  maxRecords: number,
): AnswerSections {
  const { authoritative, additionals } = zoneAnswer;
  return {
    rcode,
    authoritative,
    answers: [...zoneAnswer.answers, ...answers.slice(0, maxRecords)],
    authorities,
    additionals,
  };
}

/**
 * Forwards a query unchanged except for the id (RFC 5625), so the client's EDNS options and DNSSEC
 * flags reach the resolver. A response that is too long for the client is replaced by a truncated
 * one.
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

/** An empty response with TC set, so that the client retries over TCP. */
function truncated(query: DnsQuery, limit: number): Buffer {
  const nothing = encodeAnswer(query.question, { ...EMPTY, rcode: 'NOERROR' });
  const options = { recursionAvailable: true, limit, random: () => 0 };
  const response = encodeResponse(query, nothing, options);
  response.writeUInt16BE(response.readUInt16BE(2) | FLAG.TC, 2);
  return response;
}
