import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chmodSync, writeFileSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { createServer } from 'node:net';
import { dirname } from 'node:path';
import { execa } from 'execa';
import { socketOwner } from '../../process/socket-owner.ts';
import type { Page } from '../../status/api/common.ts';
import { type Query, StatusClient } from '../../status/client.ts';
import {
  AgentEndedError,
  AgentTimeoutError,
  ApiError,
  BadAnswerError,
  NoAgentError,
  SocketPermissionError,
  StatusClientError,
} from '../../status/client-errors.ts';
import { PAGE_PARAMETERS, pageOf } from '../../status/http/paging.ts';
import { readParameters } from '../../status/http/parameters.ts';
import { waitFor } from '../lab/lab.ts';
import { fakeAgent, httpOnUnix, temporarySocket } from './unix-server.ts';

const get = (socketPath: string, timeoutMs = 5000) =>
  new StatusClient({ socketPath, timeoutMs }).get<{ a: number }>('/api/v1/status', ['a']);

describe('status/client: without an agent', () => {
  it('says that the socket does not exist, and what to do', async () => {
    using socket = temporarySocket();
    await assert.rejects(get(socket.path), (error: NoAgentError) => {
      assert.ok(error instanceof NoAgentError);
      assert.ok(error.text.includes(`${socket.path} does not exist`));
      assert.match(error.text, /kubectl portwide/);
      assert.match(error.text, /--status-socket=none/);
      return true;
    });
  });

  it('says that a path below a file does not exist', async () => {
    using socket = temporarySocket();
    writeFileSync(socket.path, '');
    await assert.rejects(get(`${socket.path}/x`), NoAgentError);
  });

  it('says that nothing listens on the socket of a dead agent', async () => {
    using socket = temporarySocket();
    const script = `require('net').createServer().listen(process.argv[1], () => process.kill(process.pid, 'SIGKILL'))`;
    await execa(process.execPath, ['-e', script, socket.path], { reject: false });
    await assert.rejects(get(socket.path), /exists, but nothing listens on it/);
  });

  it('says that the socket is for root', async () => {
    await using agent = await fakeAgent({ '/api/v1/status': () => ({ a: 1 }) });
    chmodSync(dirname(agent.path), 0o700);
    if (process.getuid?.() !== 0) {
      chmodSync(agent.path, 0);
      await assert.rejects(get(agent.path), SocketPermissionError);
      return;
    }
    // Root may connect anyway; asks as another user.
    process.seteuid?.(65_534);
    try {
      await assert.rejects(get(agent.path), SocketPermissionError);
    } finally {
      process.seteuid?.(0);
    }
  });
});

describe('status/client: answers', () => {
  it('reads an object', async () => {
    await using agent = await fakeAgent({ '/api/v1/status': () => ({ a: 1 }) });
    assert.deepEqual(await get(agent.path), { a: 1 });
  });

  it('passes the message of an error on, with its parameter', async () => {
    await using agent = await fakeAgent({
      '/api/v1/status': ({ query }) => readParameters(query, PAGE_PARAMETERS),
    });
    const client = new StatusClient({ socketPath: agent.path });
    await assert.rejects(client.get('/api/v1/status', [], { limit: 0 }), (error: ApiError) => {
      assert.ok(error instanceof ApiError);
      assert.deepEqual([error.code, error.parameter], [400, 'limit']);
      assert.equal(error.text, 'parameter limit must be a number from 1 to 1000, not "0"');
      return true;
    });
    await assert.rejects(client.get('/api/v1/nothing', []), { code: 404 });
    await assert.rejects(client.get('/api/v1/status', [], { '\u001b': 1 }), (error: ApiError) => {
      assert.match(error.text, /^parameter \\u001b is unknown/);
      return true;
    });
  });

  const bad: Readonly<Record<string, readonly [RequestListener, RegExp]>> = {
    'is not JSON': [(_, response) => response.end('<html>\u001b'), /not JSON, begins with "<html>/],
    'is no object': [(_, response) => response.end('1'), /not an object/],
    'lacks a field': [(_, response) => response.end('{"b":1}'), /field "a" is missing/],
    'ends early': [
      (_, response) => {
        response.writeHead(200, { 'content-length': 100 });
        response.write('{"a"', () => response.destroy());
      },
      /ended before its answer did: it was stopped or killed/,
    ],
    'is an error without a message': [
      (_, response) => response.writeHead(502).end('{}'),
      /HTTP status 502 without a message/,
    ],
  };
  for (const [what, [onRequest, expected]] of Object.entries(bad)) {
    it(`refuses an answer that ${what}, and names the socket`, async () => {
      await using agent = await httpOnUnix(onRequest);
      await assert.rejects(get(agent.path), (error: StatusClientError) => {
        assert.ok(error instanceof StatusClientError, `${error}`);
        assert.match(error.text, expected);
        assert.ok(error.text.includes(agent.path));
        assert.match(error.text, /^[\x20-\x7e]*$/);
        return true;
      });
    });
  }

  it('refuses an answer that is not HTTP', async () => {
    using socket = temporarySocket();
    const server = createServer((connection) => connection.end('hello\n'));
    server.listen(socket.path);
    await once(server, 'listening');
    await assert.rejects(get(socket.path), BadAnswerError);
    server.close();
  });

  it('gives up when no byte comes, before and within an answer', async () => {
    for (const onRequest of [
      () => {},
      (_, response) => response.writeHead(200).write('{'),
    ] satisfies RequestListener[]) {
      await using agent = await httpOnUnix(onRequest);
      await assert.rejects(get(agent.path, 50), (error: Error) => {
        assert.ok(error instanceof AgentTimeoutError, `${error}`);
        assert.match(error.message, /within 0\.05 s/);
        return true;
      });
    }
  });
});

describe('status/client: an agent that does not answer at once', () => {
  const quick = { pingAfterMs: 50, pingMs: 500 };
  const ask = (socketPath: string, options: object) =>
    new StatusClient({ socketPath, ...quick, ...options }).get<{ a: number }>('/slow', ['a']);

  it('is given up early if it answers nothing else either, with its process', async () => {
    await using agent = await httpOnUnix(() => {});
    await assert.rejects(ask(agent.path, { timeoutMs: 60_000 }), (error: AgentTimeoutError) => {
      assert.ok(error instanceof AgentTimeoutError, `${error}`);
      const start = `no answer within 0.55 s from the agent (process ${process.pid}) on socket ${agent.path}: it may`;
      assert.ok(error.text.startsWith(start), error.text);
      return true;
    });
  });

  it('says that it is stopped, and how to continue it', async () => {
    using socket = temporarySocket();
    const script = `require('net').createServer().listen(process.argv[1], () => process.kill(process.pid, 'SIGSTOP'))`;
    const agent = execa(process.execPath, ['-e', script, socket.path], { reject: false });
    try {
      const isStopped = () => socketOwner(socket.path)?.isStopped === true;
      await waitFor('it is stopped', isStopped, 20_000);
      await assert.rejects(
        ask(socket.path, { timeoutMs: 60_000 }),
        new RegExp(`process ${agent.pid}.* is stopped.*; kill -CONT ${agent.pid} continues it`),
      );
    } finally {
      agent.kill('SIGKILL');
      await agent;
    }
  });

  it('is waited for if it answers a ping, also with an error', async () => {
    const paths: (string | undefined)[] = [];
    const pinged = Promise.withResolvers<void>();
    await using agent = await httpOnUnix((request, response) => {
      paths.push(request.url);
      if (request.url === '/slow') {
        void pinged.promise.then(() => response.end('{"a":1}'));
        return;
      }
      response.writeHead(503).end('{}');
      // Later than the deadline of the ping.
      setTimeout(pinged.resolve, quick.pingMs + 100);
    });
    assert.deepEqual(await ask(agent.path, {}), { a: 1 });
    assert.deepEqual(paths, ['/slow', '/api/v1']);
  });
});

describe('status/client: lists', () => {
  const agentWith = (itemsOf: (request: number) => readonly number[]) => {
    let requests = 0;
    return fakeAgent({
      '/api/v1/services': ({ query }) => {
        requests += 1;
        const { limit, ...rest } = readParameters(query, PAGE_PARAMETERS);
        assert.equal(limit, 1000);
        return { ...pageOf(itemsOf(requests), { limit: 2, ...rest }), compared: requests };
      },
    });
  };
  const list = (socketPath: string, query: Query = {}) =>
    new StatusClient({ socketPath }).list<Page<number> & { readonly compared: number }>(
      '/api/v1/services',
      query,
    );

  it('reads all pages', async () => {
    await using agent = await agentWith(() => [1, 2, 3, 4, 5]);
    assert.deepEqual(await list(agent.path), {
      items: [1, 2, 3, 4, 5],
      total: 5,
      continue: null,
      compared: 3,
    });
  });

  it('reads again a list that changed between two pages', async () => {
    await using agent = await agentWith((request) =>
      request < 3 ? [0, 1, 2].slice(request - 1) : [1, 2, 3],
    );
    assert.deepEqual((await list(agent.path)).items, [1, 2, 3]);
  });

  it('ends, even if the list changes with every page', async () => {
    await using agent = await agentWith((request) =>
      Array.from({ length: 3 + (request % 2) }, (_, at) => at),
    );
    assert.ok((await list(agent.path)).items.length >= 3);
  });

  it('refuses a page that names itself as the next', async () => {
    await using agent = await fakeAgent({
      '/api/v1/services': () => ({ items: [], total: 0, continue: 'o1' }),
    });
    await assert.rejects(list(agent.path), /"continue" repeats/);
  });

  it('refuses items that are no list', async () => {
    await using agent = await fakeAgent({
      '/api/v1/services': () => ({ items: 1, total: 0, continue: null }),
    });
    await assert.rejects(list(agent.path), /"items" is not a list/);
  });
});

describe('status/client: streams', () => {
  const lines = async (onRequest: RequestListener) => {
    await using agent = await httpOnUnix(onRequest);
    const client = new StatusClient({ socketPath: agent.path, timeoutMs: 50 });
    const read: unknown[] = [];
    try {
      for await (const line of client.lines('/api/v1/flows')) read.push(line);
    } catch (error) {
      return { read, error };
    }
    return { read, error: undefined };
  };

  it('reads lines however they are cut, also after a long silence', async () => {
    const { read, error } = await lines((_, response) => {
      response.write('{"a":1}\n{"a"');
      setTimeout(() => response.end(':2}\n\n{"a":"\u00e9"}\n'), 200);
    });
    assert.deepEqual([read, error], [[{ a: 1 }, { a: 2 }, { a: '\u00e9' }], undefined]);
  });

  it('tells that the agent is silent if it does not answer a ping, and that it is back', async () => {
    const answers: { end(): void }[] = [];
    let stream: { write(text: string): void; end(): void } | undefined;
    await using agent = await httpOnUnix((request, response) => {
      if (request.url === '/api/v1') {
        answers.push(response);
        return;
      }
      stream = response;
      response.write('{"a":1}\n');
    });
    const client = new StatusClient({ socketPath: agent.path, silenceMs: 20, pingMs: 20 });
    const told: (string | undefined)[] = [];
    const read: unknown[] = [];
    const onSilence = (error?: StatusClientError) => {
      told.push(error?.text);
      // After further pings.
      if (error !== undefined) void waitFor('pings', () => answers.length > 2).then(goOn);
      else stream?.end();
    };
    const goOn = () => stream?.write('{"a":2}\n');
    for await (const line of client.lines('/', {}, undefined, onSilence)) read.push(line);
    assert.deepEqual(read, [{ a: 1 }, { a: 2 }]);
    assert.match(told[0] ?? '', /^no answer within 0\.04 s from the agent .*it may be stopped/);
    assert.deepEqual(told.slice(1), [undefined]);
  });

  it('tells nothing about a silent stream of an agent that answers pings', async () => {
    let pings = 0;
    await using agent = await httpOnUnix((request, response) => {
      if (request.url !== '/api/v1') return response.write('{"a":1}\n');
      pings += 1;
      return response.end('{}');
    });
    const client = new StatusClient({ socketPath: agent.path, silenceMs: 20 });
    const abort = new AbortController();
    void waitFor('pings', () => pings > 2).then(() => abort.abort());
    for await (const line of client.lines('/', {}, abort.signal, () => assert.fail()))
      assert.deepEqual(line, { a: 1 });
  });

  it('fails if the connection breaks, after the lines that came', async () => {
    const { read, error } = await lines((_, response) =>
      response.write('{"a":1}\n', () => response.destroy()),
    );
    assert.deepEqual(read, [{ a: 1 }]);
    assert.ok(error instanceof AgentEndedError);
  });

  it('fails if the stream ends within a line, or a line is not JSON', async () => {
    for (const text of ['{"a":1', 'x\n']) {
      const { error } = await lines((_, response) => response.end(text));
      assert.ok(error instanceof BadAnswerError);
    }
  });

  it('closes the connection when the caller stops or aborts', async () => {
    for (const how of ['stops', 'aborts'] as const) {
      const closed = Promise.withResolvers<void>();
      await using agent = await httpOnUnix((_, response) => {
        response.on('close', closed.resolve);
        response.write('{"a":1}\n');
      });
      const abort = new AbortController();
      const client = new StatusClient({ socketPath: agent.path });
      for await (const line of client.lines('/', {}, abort.signal)) {
        assert.deepEqual(line, { a: 1 });
        if (how === 'stops') break;
        abort.abort();
      }
      await closed.promise;
    }
  });
});
