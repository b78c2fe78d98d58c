import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, request as httpRequest, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { File } from '../../status/http/file.ts';
import { refuse } from '../../status/http/guard.ts';
import { NotFound, resource, statusHandler, streamResource } from '../../status/http/handler.ts';
import { PAGE_PARAMETERS, pageOf } from '../../status/http/paging.ts';
import {
  BadParameter,
  integer,
  oneOf,
  parsed,
  readParameters,
} from '../../status/http/parameters.ts';
import { TooManyRequests, type WaitOutside } from '../../status/http/request-budget.ts';
import { UNLIMITED } from './request.ts';

describe('http: parameters of a request', () => {
  const parsers = {
    limit: integer(1, 100),
    sort: oneOf('name', 'age'),
    even: parsed('an even number', (text) => (Number(text) % 2 === 0 ? Number(text) : undefined)),
  };
  const read = (query: string) => readParameters(new URLSearchParams(query), parsers);

  it('parses known parameters; others are undefined', () => {
    assert.deepEqual(read('limit=7&sort=age'), { limit: 7, sort: 'age' });
    assert.equal(read('').limit, undefined);
  });

  for (const [query, parameter, message] of [
    ['limit=0', 'limit', /must be a number from 1 to 100, not "0"/],
    ['limit=101', 'limit', /from 1 to 100/],
    ['limit=1e1', 'limit', /not "1e1"/],
    ['limit=%00', 'limit', /not "\\u0000"/],
    ['sort=__proto__', 'sort', /one of name, age/],
    ['even=3', 'even', /must be an even number, not "3"/],
    ['limit=1&limit=2', 'limit', /more than once/],
    ['toString=1', 'toString', /unknown; known parameters: limit, sort, even/],
    ['__proto__=1', '__proto__', /unknown/],
    [`sort=${'a'.repeat(1001)}`, 'sort', /longer than 1000/],
  ] as const) {
    it(`names the parameter: ${query.slice(0, 30)}`, () => {
      assert.throws(
        () => read(query),
        (error) => {
          assert.ok(error instanceof BadParameter);
          assert.equal(error.parameter, parameter);
          assert.match(error.message, message);
          return true;
        },
      );
    });
  }

  it('never throws anything but BadParameter', () => {
    for (const query of ['=', '&&', 'limit', '%E0%A4%A', 'a=%FF', 'limit=９']) {
      try {
        read(query);
      } catch (error) {
        assert.ok(error instanceof BadParameter, query);
      }
    }
  });
});

describe('http: a resource that waits for a program', () => {
  it('takes no time of the budget while it waits', async () => {
    let running = 0;
    const budget = {
      run: async <T>(request: (waitOutside: WaitOutside) => Promise<T> | T) => {
        running += 1;
        try {
          return await request(async (run) => {
            running -= 1;
            const answer = await run();
            running += 1;
            return answer;
          });
        } finally {
          running -= 1;
        }
      },
    };
    const definition = { summary: '', response: undefined, parameters: {} };
    const read = async () => ({ running });
    const resources = {
      '/own': resource({ ...definition, handle: read }),
      '/program': resource({
        ...definition,
        handle: (_, { waitOutside }) => waitOutside(read),
      }),
    };
    const onError = (error: unknown) => assert.fail(String(error));
    const bindHost = undefined;
    const server = createServer(
      statusHandler({ resources, bindHost, statusSocket: undefined, budget, onError }),
    ).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const get = async (path: string) =>
      await (await fetch(`http://127.0.0.1:${port}${path}`)).json();
    try {
      assert.deepEqual(await get('/own'), { running: 1 });
      assert.deepEqual(await get('/program'), { running: 0 });
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });
});

describe('http: pages of a list', () => {
  it('returns every item once', () => {
    const all = Array.from({ length: 25 }, (_, index) => index);
    const seen: number[] = [];
    let next: string | null = '';
    while (next !== null) {
      const query = new URLSearchParams(
        next === '' ? { limit: '10' } : { limit: '10', continue: next },
      );
      const page = pageOf(all, readParameters(query, PAGE_PARAMETERS));
      assert.equal(page.total, 25);
      seen.push(...page.items);
      next = page.continue;
    }
    assert.deepEqual(seen, all);
  });

  it('refuses a continue value that no page had', () => {
    assert.throws(
      () => readParameters(new URLSearchParams('continue=-1'), PAGE_PARAMETERS),
      /parameter continue must be field "continue"/,
    );
  });
});

describe('http: requests of web sites', () => {
  const BIND = '127.0.0.1';
  for (const [title, headers, code] of [
    ['accepts localhost with a port', { host: 'localhost:10270' }, undefined],
    ['accepts a loopback address', { host: '127.0.0.1:10270' }, undefined],
    ['accepts an IPv6 loopback address', { host: '[::1]:10270' }, undefined],
    ['accepts the page itself', { host: 'localhost:1', origin: 'http://localhost:1' }, undefined],
    ['refuses a name that was rebound', { host: 'evil.example:10270' }, 421],
    ['refuses a name that begins like an address', { host: '127.0.0.1.evil.example' }, 421],
    ['refuses a request without Host', {}, 421],
    ['refuses another origin', { host: 'localhost:1', origin: 'http://evil.example' }, 403],
    ['refuses an opaque origin', { host: 'localhost:1', origin: 'null' }, 403],
    ['refuses another port as origin', { host: 'localhost:1', origin: 'http://localhost:2' }, 403],
    ['refuses images of other sites', { host: 'localhost:1', 'sec-fetch-site': 'cross-site' }, 403],
    ['refuses sites of the same domain', { host: 'localhost', 'sec-fetch-site': 'same-site' }, 403],
    ['accepts a typed address', { host: 'localhost', 'sec-fetch-site': 'none' }, undefined],
  ] as const) {
    it(title, () => assert.equal(refuse(headers, BIND)?.code, code));
  }

  it('accepts the address of --status-bind-address', () => {
    assert.equal(refuse({ host: '192.0.2.1:10270' }, '192.0.2.1'), undefined);
    assert.equal(refuse({ host: '192.0.2.2:10270' }, '192.0.2.1')?.code, 421);
  });
});

describe('http: answers', () => {
  let server: Server;
  const errors: unknown[] = [];
  const plain = { summary: '', response: undefined, parameters: {} };
  let streamEnded = false;
  const slow = {
    began: Promise.withResolvers<void>(),
    stopped: Promise.withResolvers<void>(),
  };
  const counter = { version: 1, computed: 0 };

  before(async () => {
    server = createServer(
      statusHandler({
        resources: {
          '/api/v1/hello/{name}': resource({
            ...plain,
            handle: (_, { path: [name] }) => {
              if (name === 'nobody') throw new NotFound('no such name');
              if (name === 'many') throw new TooManyRequests('try again in 2 s', 2);
              if (name === 'bug') throw new TypeError('a bug');
              return { name };
            },
          }),
          '/api/v1/slow': resource({
            ...plain,
            handle: async (_, { signal }) => {
              slow.began.resolve();
              await once(signal, 'abort');
              slow.stopped.resolve();
              signal.throwIfAborted();
              return {};
            },
          }),
          '/api/v1/lines': streamResource({
            ...plain,
            handle: async function* (_, { signal }) {
              try {
                for (let line = 0; !signal.aborted; line++) {
                  yield { line };
                  await new Promise(setImmediate);
                }
              } finally {
                streamEnded = true;
              }
            },
          }),
          '/api/v1/counter': resource({
            ...plain,
            version: () => `${counter.version}`,
            handle: () => {
              counter.computed += 1;
              // As if something changed while the answer was computed.
              if (counter.computed === 1) counter.version += 1;
              return counter;
            },
          }),
          '/api/v1/arm': resource({
            ...plain,
            rootCommand: 'portwide arm',
            handle: () => assert.fail('must not run'),
          }),
          '/page.css': resource({
            ...plain,
            handle: () => new File({ type: 'text/css', content: Buffer.from('a{}') }),
          }),
        },
        bindHost: '127.0.0.1',
        statusSocket: '/run/agent.sock',
        budget: UNLIMITED,
        onError: (error) => errors.push(error),
      }),
    );
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  });
  after(() => {
    server.closeAllConnections();
    server.close();
  });

  const url = (path: string) => `http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`;
  const get = async (path: string, options: RequestInit = {}) => {
    const response = await fetch(url(path), options);
    return { response, body: await response.text() };
  };

  it('is JSON, with headers that keep other sites out', async () => {
    const { response, body } = await get('/api/v1/hello/a%2Fb');
    assert.equal(response.status, 200);
    assert.deepEqual(JSON.parse(body), { name: 'a/b' });
    assert.equal(response.headers.get('access-control-allow-origin'), null);
    assert.match(response.headers.get('content-security-policy') ?? '', /default-src 'none'/);
    assert.equal(response.headers.get('x-content-type-options'), 'nosniff');
  });

  it('is computed only if its version is not the one that the client has', async () => {
    const ask = async (tag?: string) => {
      const headers = tag === undefined ? {} : { 'if-none-match': tag };
      const { response, body } = await get('/api/v1/counter', { headers });
      return { status: response.status, tag: response.headers.get('etag') ?? '', body };
    };
    const first = await ask();
    assert.deepEqual([first.status, first.tag, counter.computed], [200, '"1"', 1]);
    // The version from before the change that came meanwhile, so it is computed again.
    const second = await ask(first.tag);
    assert.deepEqual([second.status, second.tag, counter.computed], [200, '"2"', 2]);
    assert.deepEqual(await ask(second.tag), { status: 304, tag: '"2"', body: '' });
    assert.equal(counter.computed, 2);
    counter.version = 3;
    assert.equal((await ask(second.tag)).status, 200);
  });

  it('is a file with its type', async () => {
    const { response, body } = await get('/page.css');
    assert.equal(response.headers.get('content-type'), 'text/css');
    assert.equal(body, 'a{}');
  });

  for (const [path, options, status, message] of [
    ['/api/v1/hello/nobody', {}, 404, /no such name/],
    ['/api/v1/hello/bug', {}, 500, /a bug/],
    ['/api/v1/hello/%E0%A4%A', {}, 400, /parameter path must be percent-encoded/],
    ['/api/v1/hello/x?y=1', {}, 400, /parameter y is unknown; known parameters: none/],
    [
      '/api/v1/arm',
      {},
      403,
      /needs root: run `portwide arm` on the node, which uses \/run\/agent\.sock/,
    ],
    ['/api/v2', {}, 404, /no such resource/],
    ['/api/v1/hello/../hello', {}, 404, /no such resource/],
    ['/api/v1/hello/x', { method: 'POST' }, 405, /read-only; use GET/],
    ['/api/v1/hello/x', { method: 'DELETE' }, 405, /read-only/],
  ] as const) {
    it(`is an error: ${'method' in options ? options.method : 'GET'} ${path}`, async () => {
      const { response, body } = await get(path, options);
      assert.equal(response.status, status);
      const { error } = JSON.parse(body);
      assert.equal(error.code, status);
      assert.match(error.message, message);
    });
  }

  it('says when to try again', async () => {
    const { response } = await get('/api/v1/hello/many');
    assert.deepEqual([response.status, response.headers.get('retry-after')], [503, '2']);
  });

  it('reports bugs, and only these: no request that stopped because its client has gone', async () => {
    const client = httpRequest(url('/api/v1/slow')).on('error', () => {});
    client.end();
    await slow.began.promise;
    client.destroy();
    await slow.stopped.promise;
    await get('/api/v1/hello/x');
    assert.deepEqual(errors.map(String), ['TypeError: a bug']);
  });

  it('ends a stream when the client is gone', async () => {
    const client = httpRequest(url('/api/v1/lines'));
    client.end();
    const [response] = (await once(client, 'response')) as [IncomingMessage];
    assert.equal(response.headers['content-type'], 'application/x-ndjson');
    const [chunk] = await once(response, 'data');
    assert.match(String(chunk), /^{"line":0}\n/);
    client.destroy();
    const deadline = Date.now() + 10_000;
    while (!streamEnded && Date.now() < deadline) await new Promise(setImmediate);
    assert.ok(streamEnded);
  });
});
