import assert from 'node:assert/strict';
import { type ObservedMessage, PendingQueries } from '../../../policy/fqdn/pending-queries.ts';
import { endpoint } from './packets.ts';

const LIMITS = { lifetime: 1000, perClient: 3, total: 6 };
const CLIENT = '10.244.1.11';
const ENDPOINT = '10.244.2.11';
const VIP = '10.96.0.10';
const OTHER_RESOLVER = '10.96.0.11';

function bytesOf(address: string): string {
  return endpoint(address, 0).slice(0, -2);
}

function message(
  fields: Partial<Omit<ObservedMessage, 'question'>> & Partial<ObservedMessage['question']> = {},
): ObservedMessage {
  const { id = 1, name = 'www.example.com', type = 1, ...rest } = fields;
  return {
    protocol: 'UDP',
    client: endpoint(CLIENT, 40_000),
    server: endpoint(ENDPOINT, 53),
    ifindex: 7,
    question: { id, name, type },
    ...rest,
  };
}

/** The answer, which arrives on another interface than the query. */
function answer(fields: Parameters<typeof message>[0] = {}): ObservedMessage {
  return message({ ifindex: 2, ...fields });
}

describe('pending-queries: observed queries', () => {
  let queries: PendingQueries;
  const asked = (fields: Parameters<typeof message>[0] = {}, now = 0) =>
    queries.addQuery(message(fields), now);

  beforeEach(() => {
    queries = new PendingQueries(LIMITS);
    queries.setResolvers(new Set([bytesOf(VIP), bytesOf(OTHER_RESOLVER)]));
  });

  it('match one answer', () => {
    asked();
    assert.equal(queries.matchAnswer(answer(), 0), true);
    assert.equal(queries.matchAnswer(answer(), 0), false);
    assert.equal(queries.size, 0);
  });

  it('do not match an answer with another socket, id or question', () => {
    asked();
    const others: Parameters<typeof message>[0][] = [
      { id: 2 },
      { name: 'example.com' },
      { type: 28 },
      { protocol: 'TCP' },
      { client: endpoint(CLIENT, 40_001) },
      { client: endpoint('10.244.1.12', 40_000) },
      { server: endpoint('10.244.2.12', 53) },
      { server: endpoint(ENDPOINT, 54) },
      { server: endpoint(VIP, 53) },
    ];
    for (const fields of others) {
      assert.equal(queries.matchAnswer(answer(fields), 0), false, JSON.stringify(fields));
    }
    assert.equal(queries.matchAnswer(answer(), 0), true);
  });

  it('do not match an answer from the interface of the client', () => {
    asked();
    assert.equal(queries.matchAnswer(message(), 0), false);
    // Packets of the node itself have no input interface.
    asked({ ifindex: 0 });
    assert.equal(queries.matchAnswer(answer({ ifindex: 0 }), 0), true);
  });

  it('to a VIP match an answer from an endpoint, but not from another resolver', () => {
    asked({ server: endpoint(VIP, 53) });
    assert.equal(queries.matchAnswer(answer({ server: endpoint(OTHER_RESOLVER, 53) }), 0), false);
    assert.equal(queries.matchAnswer(answer({ server: endpoint(ENDPOINT, 1053) }), 0), true);
    asked({ server: endpoint(VIP, 53) });
    assert.equal(queries.matchAnswer(answer({ server: endpoint(VIP, 53) }), 0), true);
  });

  it('expire', () => {
    asked({}, 10);
    asked({ id: 2 }, 10);
    assert.equal(queries.matchAnswer(answer(), 1009), true);
    assert.equal(queries.matchAnswer(answer({ id: 2 }), 1010), false);
    asked({ id: 3 }, 1010);
    assert.equal(queries.size, 1);
    // A repeated query expires later.
    asked({ id: 2 }, 1500);
    assert.equal(queries.size, 2);
    assert.equal(queries.matchAnswer(answer({ id: 2 }), 2400), true);
  });

  it('are limited for each client, the oldest is dropped', () => {
    for (const id of [1, 2, 3, 1, 4]) asked({ id });
    const left = [1, 2, 3, 4].filter((id) => queries.matchAnswer(answer({ id }), 0));
    assert.deepEqual(left, [1, 3, 4]);
  });

  it('are limited in total, the least recently active client is dropped', () => {
    const clients = ['10.244.1.1', '10.244.1.2', '10.244.1.3'].map((each) =>
      endpoint(each, 40_000),
    );
    const [one, two, three] = clients as [string, string, string];
    for (const id of [1, 2]) asked({ client: one, id });
    for (const id of [1, 2]) asked({ client: two, id });
    asked({ client: one, id: 3 });
    for (const id of [1, 2]) asked({ client: three, id });
    assert.equal(queries.size, 5);
    assert.equal(queries.matchAnswer(answer({ client: two }), 0), false);
    assert.equal(queries.matchAnswer(answer({ client: one }), 0), true);
  });

  it('drop a client with its last query', () => {
    for (let id = 0; id < 20; id++) {
      asked({ id });
      queries.matchAnswer(answer({ id }), 0);
    }
    assert.deepEqual([queries.size, queries.clients], [0, 0]);
  });
});
