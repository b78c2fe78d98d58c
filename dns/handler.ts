/** From a query's bytes to its answer's. Knows no sockets. */
import { type Answer, type Authority, answer, zoneOf } from './answer.ts';
import { type Forwarder, rcodeOf } from './forward.ts';
import { type Query, RCODES, readQuery, type Transport } from './query.ts';
import type { Resolution } from './resolution.ts';
import {
  encodeError,
  encodeResponse,
  FLAG,
  MAX_TCP_LENGTH,
  MAX_UDP_LENGTH,
  PLAIN_UDP_LENGTH,
  rcodeIn,
} from './response.ts';

/** A query that came and what became of it. */
export interface Served {
  readonly transport: Transport;
  /** The zone that the name is in; empty for all other domains; undefined: it could not be read. */
  readonly zone: string | undefined;
  /** Undefined when it could not be read. */
  readonly query: Query | undefined;
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
  readonly onMistake: (error: unknown) => void;
}

export interface Handled {
  /** Undefined: nothing is to be said. */
  readonly response: Buffer | undefined;
  readonly served: Served | undefined;
}

/** At once, unless somebody else has to be asked; never throws or rejects. */
export type Handle = (bytes: Buffer, transport: Transport) => Handled | Promise<Handled>;

/** Bytes: a pointer to the name, what all records have, an IPv4 address. */
const SHORTEST_RECORD = 16;
const NOTHING: Handled = { response: undefined, served: undefined };

export function createHandler({ authority, forwarder, onMistake }: HandlerOptions): Handle {
  const recursionAvailable = forwarder !== undefined;
  const { clusterDomain } = authority.zone;

  return (bytes, transport) => {
    const query = readQuery(bytes);
    if (query === undefined) return NOTHING;
    if (!('name' in query)) {
      const served = { transport, zone: undefined, query: undefined, by: undefined };
      return handled(bytes, encodeError(query), { ...served, rcode: RCODES[query.rcode] });
    }
    const zone = zoneOf(query.name, clusterDomain) ?? '';
    const tell = (response: Buffer, rcode: number, by: Served['by']) =>
      handled(bytes, response, { transport, zone, query, rcode, by });
    const write = (said: Pick<Answer, 'rcode'> & Partial<Answer>, by: Served['by']) => {
      const complete = { ...EMPTY, ...said, recursionAvailable };
      const response = encodeResponse(query, complete, limitOf(query, transport));
      return tell(response, RCODES[said.rcode], by);
    };
    const fail = (error: unknown) => {
      onMistake(error);
      return write({ rcode: 'SERVFAIL' }, undefined);
    };
    try {
      const said = answer(query, authority, mostRecords(limitOf(query, transport)));
      if (said !== undefined && (said.target === undefined || forwarder === undefined)) {
        return write(said, said.authoritative ? 'zone' : undefined);
      }
      if (forwarder === undefined) return write({ rcode: 'REFUSED' }, undefined);
      const by = said === undefined ? 'forward' : 'zone';
      const asked =
        said?.target === undefined
          ? relay(forwarder, query, bytes, transport).then((response) =>
              tell(response, rcodeIn(response), by),
            )
          : forwarder
              .resolve(said.target, query.type)
              .then((resolution) => write(completed(said, resolution), by));
      return asked.catch((error) => write({ rcode: rcodeOf(error) }, by)).catch(fail);
    } catch (error) {
      return fail(error);
    }
  };
}

const EMPTY = { authoritative: false, answers: [], authorities: [], additionals: [] };

function handled(
  request: Buffer,
  response: Buffer,
  served: Omit<Served, 'requestLength' | 'responseLength'>,
): Handled {
  const lengths = { requestLength: request.length, responseLength: response.length };
  return { response, served: { ...served, ...lengths } };
}

/** One more than can be in a message, so that it is told that some are missing. */
function mostRecords(length: number): number {
  return Math.ceil(length / SHORTEST_RECORD) + 1;
}

/** The longest answer that a client takes, in bytes. */
function limitOf({ edns }: Query, transport: Transport): number {
  if (transport === 'tcp') return MAX_TCP_LENGTH;
  if (edns === undefined) return PLAIN_UDP_LENGTH;
  return Math.max(PLAIN_UDP_LENGTH, Math.min(edns.size, MAX_UDP_LENGTH));
}

/** An alias into another domain, with what is known of it there. */
function completed(said: Answer, { rcode, answers, authorities }: Resolution): Answer {
  return { ...said, rcode, answers: [...said.answers, ...answers], authorities };
}

/**
 * Has another server answer. Query and answer pass as they are (RFC 5625), so what the client says of
 * itself, and of DNSSEC, gets there.
 */
async function relay(
  forwarder: Upstream,
  query: Query,
  bytes: Buffer,
  transport: Transport,
): Promise<Buffer> {
  const response = await forwarder.ask(bytes, query, transport);
  response.writeUInt16BE(query.id, 0);
  const limit = limitOf(query, transport);
  return response.length <= limit ? response : truncated(query, limit);
}

/** Nothing but what it takes for the client to ask by TCP. */
function truncated(query: Query, limit: number): Buffer {
  const complete = { ...EMPTY, rcode: 'NOERROR', recursionAvailable: true } as const;
  const response = encodeResponse(query, complete, limit);
  response.writeUInt16BE(response.readUInt16BE(2) | FLAG.TC, 2);
  return response;
}
