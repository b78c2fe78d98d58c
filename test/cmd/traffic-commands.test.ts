import assert from 'node:assert/strict';
import { execa } from 'execa';
import { parse, parseAllDocuments } from 'yaml';
import type { ServiceSummary } from '../../status/api/services.ts';
import type { FlowLine, TopList } from '../../status/api/traffic.ts';
import { NotFound } from '../../status/http/handler.ts';
import { waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { NOW, service } from '../status/answers.ts';
import { BUSY_SERVICES, FLOWS, TOP_ROWS, topList } from '../status/traffic-answers.ts';
import { type FakeResources, fakeAgent, type UnixServer } from '../status/unix-server.ts';
import { WatchedCommands } from './watched-commands.ts';

/** Answers of the agent under test; tests replace them. */
const answers = {
  services: [] as readonly ServiceSummary[],
  /** One after the other; the last one is repeated. */
  top: [] as readonly TopList[],
  flows: (): AsyncIterable<FlowLine> => assert.fail('no answer'),
  ping: (): object => ({}),
};
/** Queries that the agent got. */
const queries: string[] = [];

const RESOURCES: FakeResources = {
  '/api/v1': () => answers.ping(),
  '/api/v1/services': ({ query }) => {
    query.delete('limit');
    queries.push(query.toString());
    return { items: answers.services, total: answers.services.length, continue: null };
  },
  '/api/v1/services/{namespace}/{name}': ({ path }) => {
    throw new NotFound(`this agent knows no Service "${path.join('/')}"`);
  },
  '/api/v1/top': ({ query }) => {
    queries.push(query.toString());
    const [first, ...rest] = answers.top;
    if (rest.length > 0) answers.top = rest;
    return first ?? assert.fail('no answer');
  },
  '/api/v1/flows': ({ query }) => {
    queries.push(query.toString());
    return answers.flows();
  },
};

describe('traffic commands', () => {
  let agent: UnixServer;
  const commands = new WatchedCommands();
  before(async () => {
    agent = await fakeAgent(RESOURCES);
  });
  after(() => agent[Symbol.asyncDispose]());
  beforeEach(() => {
    queries.length = 0;
    answers.ping = () => ({});
  });
  // After a failure.
  afterEach(() => commands.kill());

  const run = async (...args: readonly string[]) => {
    const all = [...args, '--status-socket', agent.path];
    const { stdout, stderr, exitCode } = await execa(PORTWIDE, all, { reject: false });
    return { stdout, stderr, exitCode, lines: stdout.split('\n') };
  };
  const start = (args: readonly string[]) => commands.start(args, agent.path);

  describe('portwide get --traffic', () => {
    it('waits for rates before it reads the rows, and prints notes of the sample', async () => {
      const list = topList([]);
      const noted = { ...list, sample: { ...list.sample, notes: ['no packets'] } };
      answers.top = [topList([], null), noted];
      answers.services = BUSY_SERVICES;
      const { lines, stderr } = await run('get', 'svc', '--traffic', '--no-headers');
      assert.match(lines[0] ?? '', / 1234 +12 +3\.4k +2\.4MiB$/);
      assert.equal(stderr, 'portwide: no packets');
      assert.deepEqual(queries, ['limit=1', 'limit=1', 'traffic=true']);
    });

    it('measures what it sorts by', async () => {
      answers.top = [topList([])];
      answers.services = [service({ name: 'none' }), ...BUSY_SERVICES];
      const { lines } = await run('get', 'svc', '--sort-by=-connections', '--no-headers');
      assert.deepEqual(
        lines.map((line) => line.split(/ +/)[1]),
        ['web', 'quiet', 'none'],
      );
      assert.deepEqual(queries, ['limit=1', 'traffic=true']);
    });
  });

  describe('portwide top', () => {
    it('waits for the second sample', async () => {
      const rows = TOP_ROWS.service;
      answers.top = [topList(rows, null), topList(rows, null), topList(rows)];
      const { lines, stderr, exitCode } = await run('top', 'services');
      assert.deepEqual([lines.length, stderr, exitCode, queries.length], [3, '', 0, 3]);
      assert.match(
        lines[0] ?? '',
        /^NAMESPACE +SERVICE +CONNECTIONS +NEW\/S +PACKETS\/S +BYTES\/S$/,
      );
      assert.match(lines[1] ?? '', /^voice +sip +1234 +12 +3\.4k +2\.4MiB$/);
    });

    it('prints without rates if there is no second sample for 3 s, and says so', async () => {
      answers.top = [topList(TOP_ROWS.service, null)];
      const { lines, stderr, exitCode } = await run('top', 'services', '--no-headers');
      assert.deepEqual([lines.length, exitCode], [2, 0]);
      assert.equal(stderr, 'portwide: no rates yet: the agent has one sample');
    });

    it('exits with 1 if the agent does not know the Service', async () => {
      answers.top = [topList([])];
      answers.services = [service({ name: 'web' })];
      const known = await run('top', 'svc', '--service=shop/web');
      assert.deepEqual([known.stderr, known.exitCode], ['portwide: no traffic of Services', 0]);
      const unknown = await run('top', 'svc', '--service=shop/nosuch');
      const message = 'portwide: this agent knows no Service "shop/nosuch"';
      assert.deepEqual([unknown.stderr, unknown.exitCode], [message, 1]);
    });

    it('passes its options to the API', async () => {
      answers.top = [topList(TOP_ROWS.port)];
      await run('top', 'ports', '--service=voice/sip', '--limit=5');
      await run('top', 'ep', '--service=service/voice/sip');
      await run('top', 'svc');
      await run('top', 'svc', '-n', 'voice');
      assert.deepEqual(queries, [
        'by=port&service=voice%2Fsip&limit=5',
        'by=endpoint&service=voice%2Fsip&limit=20',
        'by=service&limit=20',
        'by=service&namespace=voice&limit=20',
      ]);
      const both = await run('top', 'svc', '-n', 'voice', '--service=voice/sip');
      assert.equal(both.exitCode, 2);
      assert.match(both.stderr, /cannot be used with option '--service /);
    });

    it('prints totals with -o wide, and documents', async () => {
      const list = topList(TOP_ROWS.port);
      answers.top = [list];
      const wide = await run('top', 'ports', '-o', 'wide');
      assert.match(wide.lines[0] ?? '', / PORT .* TOTAL +PACKETS +BYTES$/);
      assert.deepEqual(JSON.parse((await run('top', 'ports', '-o', 'json')).stdout), list);
      assert.deepEqual(parse((await run('top', 'ports', '-o', 'yaml')).stdout), list);
    });

    it('prints notes on standard error: of the sample, of missing rows, of no traffic', async () => {
      const list = topList(TOP_ROWS.service);
      answers.top = [{ ...list, total: 9, sample: { ...list.sample, notes: ['no packets'] } }];
      assert.deepEqual((await run('top', 'services')).stderr.split('\n'), [
        'portwide: 2 of 9 rows; --limit shows more',
        'portwide: no packets',
      ]);
      answers.top = [topList([])];
      const { stdout, stderr, exitCode } = await run('top', 'services');
      assert.deepEqual([stdout, stderr, exitCode], ['', 'portwide: no traffic of Services', 0]);
    });

    it('says in its help how often --watch prints', async () => {
      const { stdout } = await run('top', 'svc', '--help');
      assert.match(stdout.replaceAll(/\s+/g, ' '), /--watch go on, and print each new sample/);
    });

    it('prints each sample of top once, with a header', async () => {
      const [busy, quiet] = TOP_ROWS.service;
      assert.ok(busy !== undefined && quiet !== undefined);
      answers.top = [topList([busy])];
      const watching = start(['top', 'services', '-w']);
      await watching.next('sip');
      const asked = queries.length;
      await waitFor('another request', () => queries.length > asked, 20_000);
      const { sample } = topList([]);
      const later = { ...sample, sampledAt: '2026-03-01T12:00:01.000Z', notes: ['a note'] };
      answers.top = [{ ...topList([quiet]), sample: later }];
      const text = await watching.next('web', 'a note');
      assert.match(text, /^\nNAMESPACE +SERVICE .*\nshop +web +3 .*$/m);
      assert.ok(!text.includes('sip') && !text.includes('\u001b'));
      assert.equal(await watching.stop(), 0);
    });
  });

  describe('portwide flows', () => {
    const lines = (...all: readonly FlowLine[]) =>
      async function* (): AsyncGenerator<FlowLine, void, undefined> {
        yield* all;
      };
    const started: FlowLine = {
      at: NOW,
      event: 'started',
      lost: 0,
      notes: ['policies: not shown'],
    };
    const lost: FlowLine = { at: NOW, event: 'lost', lost: 12, notes: [] };

    it('prints a line for each flow, and where some are missing', async () => {
      const [opened, , rejected] = FLOWS;
      assert.ok(opened !== undefined && rejected !== undefined);
      answers.flows = lines(started, opened, lost, rejected);
      const { lines: printed, stderr, exitCode } = await run('flows');
      assert.equal(printed.length, 4);
      assert.match(printed[0] ?? '', /^TIME +EVENT +SERVICE +PROTOCOL +SOURCE/);
      assert.match(
        printed[1] ?? '',
        / opened +shop\/web +TCP +10\.244\.1\.5:40000 +10\.96\.0\.11:80 +10\.244\.2\.6:8080 /,
      );
      assert.match(printed[2] ?? '', / 12 flows not shown: /);
      assert.match(printed[3] ?? '', / rejected .* no endpoint$/);
      assert.deepEqual(stderr.split('\n'), [
        'portwide: policies: not shown',
        'portwide: the agent ended the stream; it may be stopping',
      ]);
      assert.equal(exitCode, 2);
    });

    it('says how long the agent was stopped, and that the next times may be late', async () => {
      const [opened] = FLOWS;
      const late = { at: NOW, event: 'late', lost: 0, notes: [], seconds: 12.3 } as const;
      answers.flows = lines({ ...started, notes: [] }, late, opened ?? started);
      const { lines: printed } = await run('flows');
      assert.equal(
        printed[1],
        `${NOW}   the agent was stopped or busy for 12.3 s: the next times may be as much too late`,
      );
      assert.match(printed[2] ?? '', / opened /);
    });

    it('says that the agent does not answer, and that it does again', async () => {
      const more = Promise.withResolvers<void>();
      answers.flows = async function* () {
        yield { ...started, notes: [] };
        await more.promise;
        yield { ...started, notes: [] };
      };
      answers.ping = () => new Promise(() => {});
      const watching = start(['flows']);
      assert.match(await watching.next('no answer'), /^portwide: no answer within 7 s from the /m);
      more.resolve();
      await watching.next('portwide: the agent answers again');
    });

    it('prints a note that is new, and no second header', async () => {
      const more = {
        ...started,
        event: 'notes',
        notes: [...started.notes, 'IPv4: missing'],
      } as const;
      answers.flows = lines(started, more, { ...more, notes: started.notes });
      const { lines: printed, stderr } = await run('flows');
      assert.equal(printed.length, 1);
      assert.deepEqual(stderr.split('\n').slice(0, -1), [
        'portwide: policies: not shown',
        'portwide: IPv4: missing',
      ]);
    });

    it('prints the header above the columns of its rows', async () => {
      answers.flows = lines(started, ...FLOWS.slice(0, 1));
      const { lines: printed } = await run('flows');
      const [header = '', row = ''] = printed;
      for (const [name, value] of [
        ['EVENT', 'opened'],
        ['DESTINATION', '10.96.0.11:80'],
        ['DETAIL', '<none>'],
      ] as const) {
        assert.equal(row.indexOf(value), header.indexOf(name));
      }
    });

    it('prints all lines as JSON and YAML', async () => {
      const all = [started, ...FLOWS, lost];
      answers.flows = lines(...all);
      const { lines: printed } = await run('flows', '-o', 'json');
      assert.deepEqual(
        printed.map((line) => JSON.parse(line) as FlowLine),
        all,
      );
      const { stdout } = await run('flows', '-o', 'yaml');
      assert.deepEqual(
        parseAllDocuments(stdout).map((document) => document.toJS() as FlowLine),
        all,
      );
    });

    it('passes its options to the API', async () => {
      const filters = ['--ip=10.0.0.1', '--port=53', '--protocol=udp', '--event=denied'];
      answers.flows = lines(started);
      await run('flows', '--service=shop/web', ...filters);
      await run('flows', '-n', 'shop');
      assert.deepEqual(queries, [
        'service=shop%2Fweb&ip=10.0.0.1&port=53&protocol=UDP&event=denied',
        'namespace=shop',
      ]);
    });

    it('exits with 2 if the agent does not know the Service, instead of waiting', async () => {
      const message = 'this agent knows no Service "shop/nosuch"';
      answers.flows = () => {
        throw new NotFound(message);
      };
      const { stdout, stderr, exitCode } = await run('flows', '--service=shop/nosuch');
      assert.deepEqual([stdout, stderr, exitCode], ['', `portwide: ${message}`, 2]);
    });

    it('ends silently with status 0 when its reader is gone', async () => {
      const [flow] = FLOWS;
      answers.flows = async function* () {
        for (;;) yield flow ?? started;
      };
      const script = 'set -o pipefail; "$0" flows --status-socket "$1" | head -n 2; echo $?';
      const { stdout, stderr } = await execa('bash', ['-c', script, PORTWIDE, agent.path]);
      assert.deepEqual([stdout.split('\n').length, stdout.split('\n')[2], stderr], [3, '0', '']);
    });

    it('ends silently on Ctrl-C, and with the standard input of kubectl portwide', async () => {
      const endless = Promise.withResolvers<void>();
      answers.flows = async function* () {
        yield { ...started, notes: [] };
        await endless.promise;
      };
      const interrupted = start(['flows']);
      assert.match(await interrupted.next('DETAIL\n'), /^TIME .* DETAIL\n$/);
      assert.equal(await interrupted.interrupt(), 'SIGINT');
      const closed = start(['flows']);
      await closed.next('DETAIL\n');
      assert.equal(await closed.stop(), 0);
      assert.equal(interrupted.rest() + closed.rest(), '');
      endless.resolve();
    });
  });
});
