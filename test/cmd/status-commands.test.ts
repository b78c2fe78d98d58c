import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { execa } from 'execa';
import { parse } from 'yaml';
import { NotFound } from '../../status/http/handler.ts';
import { PAGE_PARAMETERS, pageOf } from '../../status/http/paging.ts';
import { readParameters } from '../../status/http/parameters.ts';
import { PORTWIDE } from '../portwide.ts';
import {
  ENDPOINTS as ALL_ENDPOINTS,
  ROUTES as ALL_ROUTES,
  SERVICES as ALL_SERVICES,
  DEGRADED,
  DETAIL,
  diff,
  HEALTHY,
  MISSING,
  POLICIES,
  service,
} from '../status/answers.ts';
import { TOP_ROWS, topList } from '../status/traffic-answers.ts';
import {
  type FakeResources,
  fakeAgent,
  temporarySocket,
  type UnixServer,
} from '../status/unix-server.ts';
import { loadedModules } from './loaded-modules.ts';
import { WatchedCommands } from './watched-commands.ts';

/** Without the Service with owned ports. */
const SERVICES = ALL_SERVICES.filter(({ name }) => name !== 'turn');
const ENDPOINTS = ALL_ENDPOINTS.filter(({ service: of }) => of !== 'voice/turn');
const ROUTES = ALL_ROUTES.filter(({ service: of }) => of !== 'voice/turn');

/** Answers of the agent under test; tests replace them. */
const DEFAULTS = {
  status: HEALTHY,
  services: SERVICES,
  diff: diff([]),
  detail: DETAIL,
  policies: POLICIES as typeof POLICIES | undefined,
};
const answers = { ...DEFAULTS };
/** Queries that the agent got. */
const queries: string[] = [];

const RESOURCES: FakeResources = {
  '/api/v1/status': () => answers.status,
  '/api/v1/services': ({ query }) => page(answers.services, query),
  '/api/v1/endpoints': ({ query }) => page(ENDPOINTS, query),
  '/api/v1/routes': ({ query }) => page(ROUTES, query),
  '/api/v1/services/{namespace}/{name}': ({ path }) => {
    if (path.join('/') === 'shop/web') return answers.detail;
    const reason = path[1] === 'broken' ? ': it cannot be read: spec.x: wrong' : '';
    throw new NotFound(`this agent knows no Service "${path.join('/')}"${reason}`);
  },
  '/api/v1/diff': ({ query }) => {
    queries.push(query.toString());
    return answers.diff;
  },
  '/api/v1/top': () => topList(TOP_ROWS.service),
  '/api/v1/policies': ({ query }) => {
    if (answers.policies === undefined) throw new NotFound('no such resource');
    return page(answers.policies, query);
  },
};

/** Filters by namespace and Service, as the agent does; any other filter is only recorded. */
function page(all: readonly object[], query: URLSearchParams) {
  const { limit, continue: next, ...filters } = Object.fromEntries(query);
  queries.push(new URLSearchParams(filters).toString());
  const given = new URLSearchParams({ ...(limit && { limit }), ...(next && { continue: next }) });
  const items = all.filter((item) => {
    const {
      namespace,
      name,
      service: key = `${namespace}/${name}`,
    } = item as Record<string, string>;
    return (
      (filters.service ?? key) === key &&
      (filters.namespace === undefined || key.startsWith(`${filters.namespace}/`))
    );
  });
  return pageOf(items, readParameters(given, PAGE_PARAMETERS));
}

describe('status commands', () => {
  let agent: UnixServer;
  before(async () => {
    agent = await fakeAgent(RESOURCES);
  });
  after(() => agent[Symbol.asyncDispose]());
  beforeEach(() => {
    Object.assign(answers, DEFAULTS);
    queries.length = 0;
  });

  const run = async (...args: readonly string[]) => {
    const all = [...args, '--status-socket', agent.path];
    const { stdout, stderr, exitCode } = await execa(PORTWIDE, all, { reject: false });
    return { stdout, stderr, exitCode, lines: stdout.split('\n') };
  };

  describe('without an agent', () => {
    for (const command of [
      'status',
      'get svc',
      'get ep',
      'describe service a/b',
      'diff',
      'top ports',
      'flows',
    ]) {
      it(`${command} exits with 2 and says what to do`, async () => {
        using socket = temporarySocket();
        const args = [...command.split(' '), '--status-socket', socket.path];
        const { stdout, stderr, exitCode } = await execa(PORTWIDE, args, { reject: false });
        assert.deepEqual([stdout, exitCode], ['', 2]);
        assert.match(stderr, /no agent runs on this node: socket .*p\.sock does not exist/);
        assert.match(stderr, /kubectl portwide/);
        assert.doesNotMatch(stderr, /^ +at /m);
      });
    }

    for (const command of ['top services', 'top endpoints', 'top ports', 'flows']) {
      it(`${command} --help says what is not tracked`, async () => {
        const { stdout } = await execa(PORTWIDE, [...command.split(' '), '--help']);
        assert.match(stdout, /^UDP of owned ports .* is not tracked: no rows, no counters\.$/m);
      });
    }

    for (const args of [
      ['status', '--nonsense'],
      ['get', 'svc', '--state=x'],
      ['get', 'pods'],
      ['top', 'pods'],
      ['top', 'ports', '--limit=0'],
      ['top', 'ports', '--service=web'],
      ['flows', '--port=x'],
      ['top', 'ports', '--service=bad//'],
      ['describe', '--status-socket=/x'],
      ['status', '--status-socket='],
      ['status', '--status-socket=/etc/passwd'],
      ['--nonsense'],
      ['env', '--nonsense', '-n', 'a'],
      ['validate', '--nonsense', '--manifests=/'],
      ['render', '--nonsense', '--manifests=/'],
      ['completion', 'nonsense', '--nonsense'],
      ['version', '--nonsense'],
      ['ipvs', 'marks', '--nonsense'],
    ]) {
      it(`exits with 2 for wrong usage: ${args.join(' ')}`, async () => {
        const { exitCode, stderr } = await execa(PORTWIDE, args, { reject: false });
        assert.equal(exitCode, 2);
        assert.match(
          stderr,
          /--nonsense|--state|pods|--limit|--service|--port|name a kind|path of a socket|is no socket/,
        );
        assert.doesNotMatch(stderr, /^ +at /m);
      });
    }
  });

  for (const args of [
    ['nonsense'],
    ['nonsense', '--help'],
    ['nonsense', '-h', 'get'],
    ['get', 'nonsense', '--help'],
    ['policy', 'nonsense', '--help'],
    ['ipvs', 'nonsense', '--help'],
    ['help', 'nonsense'],
    ['help', 'get', 'nonsense'],
    ['help', 'status', 'nonsense'],
  ]) {
    it(`exits with 2 for an unknown command: portwide ${args.join(' ')}`, async () => {
      const { exitCode, stderr, stdout } = await execa(PORTWIDE, args, { reject: false });
      assert.deepEqual([exitCode, stdout], [2, '']);
      assert.match(stderr, /^error: unknown command 'nonsense'/);
    });
  }

  for (const [args, suggested] of [
    [['statsu'], 'status'],
    [['statsu', '--help'], 'status'],
    [['help', 'statsu'], 'status'],
    [['help', 'get', 'servces'], 'services'],
  ] as const) {
    it(`suggests a command: portwide ${args.join(' ')}`, async () => {
      const { exitCode, stderr } = await execa(PORTWIDE, args, { reject: false });
      assert.equal(exitCode, 2);
      assert.match(stderr, new RegExp(`\\(Did you mean ${suggested}\\?\\)`));
    });
  }

  it('prints the help of a command below another one: portwide help policy explain', async () => {
    const { stdout } = await execa(PORTWIDE, ['help', 'policy', 'explain']);
    assert.match(stdout, /^Usage: portwide policy explain /);
  });

  for (const args of [['--help'], ['help'], ['help', 'get'], ['get', '--help'], ['get', 'help']]) {
    it(`prints help: portwide ${args.join(' ')}`, async () => {
      const { exitCode, stdout } = await execa(PORTWIDE, args, { reject: false });
      assert.equal(exitCode, 0);
      assert.match(stdout, /^Usage: portwide /);
    });
  }

  for (const args of [[], ['nonsense'], ['policy']]) {
    it(`exits with 2 without a command: portwide ${args.join(' ')}`, async () => {
      const { exitCode, stderr } = await execa(PORTWIDE, args, { reject: false });
      assert.deepEqual([exitCode, stderr === ''], [2, false]);
    });
  }

  for (const command of ['get services', 'get endpoints', 'get routes', 'get endpoints -n shop']) {
    it(`exits with 1 if the agent does not know the Service: ${command}`, async () => {
      const { exitCode, stderr, stdout } = await run(...command.split(' '), 'nosuch');
      assert.deepEqual([exitCode, stdout], [1, '']);
      assert.match(stderr, /^portwide: this agent knows no Service "(shop\/)?nosuch"$/);
    });
  }

  for (const command of ['get services', 'get endpoints', 'get routes', 'describe service']) {
    it(`says that the manifest of the Service cannot be read: ${command}`, async () => {
      const object = 'Service voice/broken';
      const problem = { reason: 'Unreadable', message: 'spec.x: wrong', object, family: null };
      answers.status = { ...HEALTHY, problems: [problem] };
      for (const name of ['voice/broken', 'broken']) {
        const { exitCode, stderr } = await run(...command.split(' '), name);
        assert.deepEqual(
          [exitCode, stderr],
          [
            1,
            'portwide: this agent knows no Service "voice/broken": it cannot be read: spec.x: wrong',
          ],
        );
      }
    });
  }

  it('probe exits with 1 if the agent does not know the Service', async () => {
    const { exitCode, stderr } = await run('probe', 'shop/nosuch', '--ports=80');
    assert.deepEqual(
      [exitCode, stderr],
      [1, 'portwide: this agent knows no Service "shop/nosuch"'],
    );
  });

  it('says in one line that the output cannot be written', async () => {
    const command = `${PORTWIDE} get services --status-socket=${agent.path} >/dev/full`;
    const { exitCode, stderr } = await execa('sh', ['-c', command], { reject: false });
    assert.equal(exitCode, 2);
    assert.match(stderr, /^portwide: cannot write the output: ENOSPC.*$/);
  });

  describe('portwide status', () => {
    it('exits with 0 if the node is healthy, 1 if it starts or is degraded', async () => {
      assert.equal((await run('status')).exitCode, 0);
      answers.status = { ...HEALTHY, state: 'starting' };
      assert.equal((await run('status')).exitCode, 1);
      answers.status = DEGRADED;
      const { stdout, exitCode } = await run('status');
      assert.equal(exitCode, 1);
      assert.match(stdout, /^State: +degraded\nProblems:\n {2}SyncFailed/m);
    });

    it('prints one row, JSON and YAML', async () => {
      const { lines } = await run('status', '-o', 'short');
      assert.match(lines[0] ?? '', /^STATE +MODE +VERSION/);
      assert.equal((await run('status', '-o', 'short', '--no-headers')).lines.length, 1);
      assert.deepEqual(JSON.parse((await run('status', '-o', 'json')).stdout), HEALTHY);
      assert.deepEqual(parse((await run('status', '-o', 'yaml')).stdout), HEALTHY);
    });

    it('has no colours outside a terminal', async () =>
      assert.ok(!(await run('status')).stdout.includes('\u001b')));
  });

  describe('portwide get', () => {
    it('lists Services of all namespaces, or of one without its column', async () => {
      const all = await run('get', 'services');
      assert.equal(all.exitCode, 0);
      assert.match(
        all.lines[0] ?? '',
        /^NAMESPACE +NAME +TYPE +STATE +VIPS +PORTS +READY +LOCAL +AGE$/,
      );
      assert.equal(all.lines.length, 4);
      const one = await run('get', 'svc', '-n', 'voice');
      assert.match(one.stdout, /^NAME +TYPE .*\nsip +ClusterIP +served [^\n]*$/);
      assert.equal((await run('get', 'svc', '-n', 'voice', '-A')).stdout, all.stdout);
    });

    it('adds columns with -o wide', async () => {
      const { lines } = await run('get', 'svc', '-o', 'wide');
      assert.match(
        lines[0] ?? '',
        / TERMINATING +AFFINITY +INTERNAL-POLICY +EXTERNAL-POLICY +AGE$/,
      );
    });

    it('finds a Service by name in each form', async () => {
      for (const args of [['sip'], ['voice/sip'], ['service/voice/sip'], ['-n', 'voice', 'sip']]) {
        const { stdout } = await run('get', 'svc', '-o', 'json', ...args);
        assert.deepEqual(JSON.parse(stdout), SERVICES[2]);
      }
    });

    it('exits with 1 if there is no such Service', async () => {
      for (const args of [['gone'], ['shop/gone'], ['shop/sip']]) {
        const { exitCode, stderr } = await run('get', 'svc', ...args);
        assert.deepEqual(
          [exitCode, stderr],
          [1, `portwide: this agent knows no Service "${args}"`],
        );
      }
    });

    it('refuses a name that is none, and contradicting namespaces', async () => {
      assert.match((await run('get', 'svc', 'a/b/c')).stderr, /"a\/b\/c" is not the name/);
      assert.match((await run('get', 'svc', 'a/b', '-n', 'c')).stderr, /use only one of them/);
    });

    it('prints names that other commands take', async () => {
      const { lines } = await run('get', 'svc', '-o', 'name');
      assert.deepEqual(lines, ['service/shop/bad', 'service/shop/web', 'service/voice/sip']);
      assert.equal((await run('describe', 'service', lines[1] ?? '')).exitCode, 0);
    });

    it('prints names of endpoints, Routes and policies, each once', async () => {
      const names = async (kind: string) => (await run('get', kind, '-o', 'name')).lines;
      assert.deepEqual(await names('endpoints'), [
        'endpoint/shop/web/10.244.2.6:8080',
        'endpoint/voice/sip/10.244.1.5',
        'endpoint/voice/sip/fd00:10:244:2::5',
        'endpoint/voice/sip/10.244.2.7',
      ]);
      assert.deepEqual(await names('routes'), [
        'route/shop/web/10.96.0.11/80/TCP',
        'route/shop/web/203.0.113.1/80/TCP',
        'route/shop/web/nodePort/30080/TCP',
        'route/voice/sip/10.96.0.10/all',
      ]);
      const policies = await names('policies');
      assert.deepEqual(policies, [
        'adminnetworkpolicy/cluster',
        'networkpolicy/shop/web',
        'networkpolicy/shop/broken',
      ]);
      for (const name of policies) {
        assert.deepEqual((await run('get', 'policies', name, '-o', 'name')).lines, [name]);
      }
      answers.services = [service(), service()];
      assert.deepEqual(await names('services'), ['service/shop/web']);
    });

    it('prints lists as JSON and YAML', async () => {
      const expected = { items: SERVICES, total: 3, continue: null };
      assert.deepEqual(JSON.parse((await run('get', 'svc', '-o', 'json')).stdout), expected);
      assert.deepEqual(parse((await run('get', 'svc', '-o', 'yaml')).stdout), expected);
    });

    it('sorts, and refuses an unknown column', async () => {
      const names = async (by: string) =>
        (await run('get', 'svc', '--no-headers', `--sort-by=${by}`)).lines.map(
          (line) => line.split(/ +/)[1],
        );
      assert.deepEqual(await names('ready'), ['bad', 'web', 'sip']);
      assert.deepEqual(await names('-ready'), ['sip', 'web', 'bad']);
      assert.deepEqual(await names('AGE'), ['web', 'sip', 'bad']);
      const { exitCode, stderr } = await run('get', 'svc', '--sort-by', 'colour');
      assert.equal(exitCode, 2);
      assert.match(stderr, /--sort-by.*colour.*namespace, name/);
    });

    it('passes filters to the API', async () => {
      await run('get', 'svc', '--state=served', '--ports=all', '--vip=10.96.0.1');
      await run('get', 'ep', '--address=10.244.1.5', '--family=IPv4');
      await run('get', 'routes', '--vip=10.96.0.1', '--family=IPv6', '-n', 'shop');
      assert.deepEqual(queries, [
        'state=served&ports=all&vip=10.96.0.1',
        'address=10.244.1.5&family=IPv4',
        'namespace=shop&vip=10.96.0.1&family=IPv6',
      ]);
    });

    it('lists endpoints and Routes, also of one Service', async () => {
      assert.equal((await run('get', 'ep', '--no-headers')).lines.length, 4);
      assert.equal((await run('get', 'endpoints', '--no-headers', 'sip')).lines.length, 3);
      assert.equal((await run('get', 'routes', '--no-headers', 'shop/web')).lines.length, 3);
    });

    it('says on standard error that there is nothing', async () => {
      const { stdout, stderr, exitCode } = await run('get', 'ep', 'shop/bad');
      assert.deepEqual([stdout, stderr, exitCode], ['', 'No endpoints found.', 0]);
    });

    it('ends silently with status 0 when its reader is gone', async () => {
      answers.services = Array.from({ length: 3000 }, (_, at) => service({ name: `web-${at}` }));
      const script = 'set -o pipefail; "$0" get svc --status-socket "$1" | head -n 2; echo $?';
      const { stdout, stderr } = await execa('bash', ['-c', script, PORTWIDE, agent.path]);
      const lines = stdout.split('\n');
      assert.deepEqual([lines.length, lines[2], stderr], [3, '0', '']);
      assert.match(lines[1] ?? '', /^shop +web-0 /);
    });
  });

  describe('portwide get policies', () => {
    it('lists policies of all namespaces, of one, and by name', async () => {
      const { lines, exitCode } = await run('get', 'policies');
      assert.match(lines[0] ?? '', /^NAMESPACE +NAME +KIND +INGRESS +EGRESS +PODS +STATE +FAULTS$/);
      assert.deepEqual([lines.length, exitCode], [4, 0]);
      assert.equal((await run('get', 'netpol', '-n', 'shop', '--no-headers')).lines.length, 2);
      const { stdout } = await run('get', 'netpol', 'shop/broken', '-o', 'json');
      assert.deepEqual(JSON.parse(stdout), POLICIES[2]);
      assert.equal((await run('get', 'netpol', 'cluster', '--no-headers')).lines.length, 1);
      await run('get', 'netpol', '--state=faulty');
      assert.deepEqual(queries.slice(-3), ['namespace=shop', '', 'state=faulty']);
    });

    it('exits with 1 if there is no such policy, or no network policy', async () => {
      const unknown = await run('get', 'netpol', 'shop/gone');
      assert.deepEqual(
        [unknown.exitCode, unknown.stderr],
        [1, 'portwide: this agent knows no policy "shop/gone"'],
      );
      answers.policies = undefined;
      const off = await run('get', 'policies');
      assert.deepEqual([off.exitCode, off.stdout], [1, '']);
      assert.match(
        off.stderr,
        /^portwide: this agent enforces no network policy: .*--network-policy$/,
      );
    });
  });

  describe('portwide describe', () => {
    it('describes a Service by NAMESPACE/NAME, by name, and as JSON', async () => {
      const { stdout, exitCode } = await run('describe', 'service', 'shop/web');
      assert.equal(exitCode, 0);
      assert.match(stdout, /^Name: +web\nNamespace: +shop\nState: +served\nProblems:\n/);
      assert.equal((await run('describe', 'svc', 'web')).stdout, stdout);
      assert.equal((await run('describe', 'svc', 'web', '-n', 'shop')).stdout, stdout);
      const json = (await run('describe', 'svc', 'web', '-o', 'json')).stdout;
      assert.deepEqual(JSON.parse(json), DETAIL);
    });

    it('prints ten connections, stale ones first, and all that it got with -o wide', async () => {
      const [flow] = DETAIL.connections?.entries ?? assert.fail();
      const entries = Array.from({ length: 30 }, (_, at) => ({
        ...(flow ?? assert.fail()),
        source: `10.1.0.${at}`,
        stale: at === 29,
      }));
      answers.detail = { ...DETAIL, connections: { total: 42, entries } };
      const { lines } = await run('describe', 'svc', 'shop/web');
      const first = lines.indexOf('Connections:') + 2;
      assert.match(lines[first] ?? '', / 10\.1\.0\.29:/);
      assert.match(lines[first + 9] ?? '', / 10\.1\.0\.8:/);
      assert.equal(lines[first + 10], '  and 32 more (-o wide lists 30)');
      const wide = await run('describe', 'svc', 'shop/web', '-o', 'wide');
      assert.match(wide.lines[first + 29] ?? '', / 10\.1\.0\.28:/);
      assert.equal(wide.lines[first + 30], '  and 12 more');
    });

    it('exits with 1 for an unknown Service, 2 for a name in several namespaces', async () => {
      const unknown = await run('describe', 'service', 'shop/gone');
      assert.deepEqual(
        [unknown.exitCode, unknown.stderr],
        [1, 'portwide: this agent knows no Service "shop/gone"'],
      );
      answers.services = [service(), service({ namespace: 'voice' })];
      const several = await run('describe', 'service', 'web');
      assert.equal(several.exitCode, 2);
      assert.match(several.stderr, /2 Services have the name "web": shop\/web, voice\/web/);
    });
  });

  describe('portwide diff', () => {
    it('exits with 0 without and with 1 with differences', async () => {
      const none = await run('diff');
      assert.deepEqual([none.exitCode, none.stdout], [0, 'no differences; 120 objects compared']);
      answers.diff = diff([MISSING]);
      const one = await run('diff');
      assert.equal(one.exitCode, 1);
      assert.match(one.stdout, /^\+10\.96\.0\.11 \. tcp \. 80 : goto web$/m);
      assert.equal((await run('diff', '-o', 'short')).lines.length, 2);
      assert.deepEqual(JSON.parse((await run('diff', '-o', 'json')).stdout), answers.diff);
    });

    it('passes its options to the API', async () => {
      await run('diff', '-n', 'shop', '--family=IPv6');
      assert.deepEqual(queries, ['namespace=shop&family=IPv6&limit=1000']);
    });

    it('exits with 1 if a family is not synced, and says why', async () => {
      answers.diff = diff([], {
        unsynced: [{ family: 'IPv6', hasSynced: false, error: 'nft failed' }],
      });
      const { exitCode, lines } = await run('diff');
      assert.deepEqual(
        [exitCode, ...lines],
        [1, 'no differences; 120 objects compared', 'IPv6: not synced yet: nft failed'],
      );
      const short = await run('diff', '-o', 'short');
      assert.equal(short.exitCode, 1);
      assert.match(short.stdout, /IPv6: not synced yet: nft failed/);
    });

    it('exits with 0 if syncs may be changing all objects that differ', async () => {
      const changing = { ...MISSING, inProgress: true };
      answers.diff = diff([changing], { different: 0, inProgress: 1, stable: false });
      const { exitCode, stdout } = await run('diff');
      assert.equal(exitCode, 0);
      assert.match(
        stdout,
        /^no differences;.*\n1 object may be changing in a sync: run it again$/m,
      );
    });

    it('exits with 2 if nothing was compared, and says why', async () => {
      answers.diff = diff([], {
        compared: 0,
        unsynced: [{ family: 'IPv4', hasSynced: false, error: 'EPERM' }],
      });
      const { exitCode, stderr } = await run('diff');
      assert.equal(exitCode, 2);
      assert.match(stderr, /IPv4: not synced yet: EPERM/);
    });
  });

  describe('--watch', () => {
    const commands = new WatchedCommands();
    // After a failure.
    afterEach(() => commands.kill());
    const start = (args: readonly string[], socket = agent.path) => commands.start(args, socket);

    it('prints changed and deleted rows, without a header', async () => {
      const watching = start(['get', 'svc', '-w']);
      await watching.next('sip');
      answers.services = [SERVICES[0], service({ name: 'web', state: 'noEndpoints' })].flatMap(
        (each) => each ?? [],
      );
      const text = await watching.next('noEndpoints', 'deleted');
      assert.match(
        text,
        /^shop +web +ClusterIP +noEndpoints .*\nvoice +sip +ClusterIP +deleted .*\n$/,
      );
      assert.equal(await watching.stop(), 0);
    });

    it('prints changed objects as JSON', async () => {
      const watching = start(['get', 'svc', '-w', '-o', 'json', '-n', 'voice']);
      assert.deepEqual(JSON.parse(await watching.next('created', '\n}\n')), SERVICES[2]);
      answers.services = [service({ namespace: 'voice', name: 'new' })];
      assert.deepEqual(JSON.parse(await watching.next('"new"', '\n}\n')), answers.services[0]);
      assert.equal(await watching.stop(), 0);
    });

    for (const command of ['status -w', 'get policies -w', 'top services -w']) {
      it(`ends when its reader is gone, without a change: ${command}`, async () => {
        const script = `set -o pipefail; timeout 30 "$0" ${command} --status-socket "$1" | head -n 1; echo $?`;
        const { stdout, stderr } = await execa('bash', ['-c', script, PORTWIDE, agent.path]);
        const lines = stdout.split('\n');
        assert.deepEqual([lines.length, lines[1], stderr], [2, '0', '']);
      });
    }

    it('prints changes of the state', async () => {
      const watching = start(['status', '-w']);
      await watching.next('Syncs:');
      answers.status = DEGRADED;
      assert.match(await watching.next('state degraded', 'RefusedVip'), /new problem: SyncFailed/);
      assert.equal(await watching.stop(), 0);
    });

    it('goes on after a restart of the agent', async () => {
      const first = await fakeAgent(RESOURCES);
      const watching = start(['get', 'svc', '-w'], first.path);
      await watching.next('sip');
      rmSync(first.path);
      assert.match(
        await watching.next('waiting'),
        /no agent .* does not exist; waiting for the agent/,
      );
      await using second = await fakeAgent(RESOURCES, first.path);
      answers.services = [service({ name: 'new' })];
      assert.match(await watching.next('new ', 'again'), /the agent answers again/);
      assert.equal(await watching.stop(), 0);
      assert.equal(second.path, first.path);
      await first[Symbol.asyncDispose]();
    });
  });

  for (const command of ['status', 'get svc', 'top ports', 'flows'])
    it(`${command} loads neither netlink nor the packages of the agent`, async () => {
      const names = await loadedModules(...command.split(' '), '--status-socket', '/nowhere');
      assert.ok(names.includes('status/client.ts'));
      const forbidden = names.filter((name) =>
        /^(yaml|execa|koffi|pino|prom-client|@kubernetes\/.*|.*undici\/undici)$|^(agent|nft|ipvs|proxier)\//.test(
          name,
        ),
      );
      assert.deepEqual(forbidden, []);
    });
});
