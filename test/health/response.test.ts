import assert from 'node:assert/strict';
import { ProxyHealth } from '../../health/proxy-health.ts';
import { proxyResponse, serviceResponse } from '../../health/response.ts';

const HEADERS = { 'Content-Type': 'application/json', 'X-Content-Type-Options': 'nosniff' };

/** The health of a proxy, with a clock in milliseconds since the start. */
function build({ needsNode = false } = {}) {
  let now = 0;
  const missing: string[] = [];
  const health = new ProxyHealth({
    timeout: 1000,
    needsNode,
    missingInputs: () => missing,
    clock: { wall: () => new Date(Date.UTC(2026, 0, 1) + now), elapsed: () => now },
  });
  return {
    health,
    missing,
    goTo: (time: number) => {
      now = time;
    },
  };
}

const node = (fields: { deleting?: boolean; taints?: string[] }) => ({
  kind: 'Node' as const,
  key: 'n',
  name: 'n',
  labels: {},
  zone: undefined,
  podCIDRs: [],
  addresses: [],
  deleting: false,
  taints: [],
  ...fields,
});

describe('response: /healthz and /livez', () => {
  it('gives the current time as lastUpdated when healthy', () => {
    const { health, goTo } = build();
    health.begin(['IPv4', 'IPv6']);
    health.updated('IPv6');
    goTo(10);
    health.updated('IPv4');
    goTo(2500);
    const rest =
      '"healthy":true,"status":{' +
      '"IPv4":{"lastUpdated":"2026-01-01T00:00:00.010Z","healthy":true},' +
      '"IPv6":{"lastUpdated":"2026-01-01T00:00:00.000Z","healthy":true}}}';
    const times =
      '{"lastUpdated":"2026-01-01T00:00:02.500Z","currentTime":"2026-01-01T00:00:02.500Z",';
    assert.deepEqual(proxyResponse('/healthz', health), {
      code: 200,
      headers: HEADERS,
      body: `${times}"nodeEligible":true,${rest}`,
    });
    assert.deepEqual(proxyResponse('/livez', health), {
      code: 200,
      headers: HEADERS,
      body: `${times}${rest}`,
    });
  });

  it('gives the time of the last sync as lastUpdated when unhealthy', () => {
    const { health, goTo } = build();
    health.begin(['IPv4', 'IPv6']);
    for (const family of ['IPv4', 'IPv6'] as const) health.updated(family);
    goTo(500);
    health.updated('IPv6');
    health.queued('IPv4');
    goTo(1500);
    for (const [path, eligible] of [
      ['/healthz', '"nodeEligible":true,'],
      ['/livez', ''],
    ] as const) {
      assert.deepEqual(proxyResponse(path, health), {
        code: 503,
        headers: HEADERS,
        body:
          '{"lastUpdated":"2026-01-01T00:00:00.500Z","currentTime":"2026-01-01T00:00:01.500Z",' +
          `${eligible}"healthy":false,"status":{` +
          '"IPv4":{"lastUpdated":"2026-01-01T00:00:00.000Z","healthy":false},' +
          '"IPv6":{"lastUpdated":"2026-01-01T00:00:00.500Z","healthy":true}}}',
      });
    }
  });

  it('fails /healthz but not /livez when the node is not eligible', () => {
    const { health, goTo } = build();
    health.begin(['IPv4']);
    health.updated('IPv4');
    goTo(5000);
    health.setNode(node({ taints: ['ToBeDeletedByClusterAutoscaler'] }));
    const { code, body } = proxyResponse('/healthz', health);
    assert.equal(code, 503);
    assert.deepEqual(JSON.parse(body), {
      lastUpdated: '2026-01-01T00:00:00.000Z',
      currentTime: '2026-01-01T00:00:05.000Z',
      nodeEligible: false,
      healthy: true,
      status: { IPv4: { lastUpdated: '2026-01-01T00:00:00.000Z', healthy: true } },
    });
    assert.equal(proxyResponse('/livez', health).code, 200);
  });

  const NOW = '"currentTime":"2026-01-01T00:00:00.000Z"';

  it('fails /healthz and lists missing conditions, but does not fail /livez, before the first sync', () => {
    const { health, missing } = build();
    missing.push('Services from the API server 192.0.2.1:6443', 'Node "a"');
    assert.equal(
      proxyResponse('/livez', health).body,
      `{"lastUpdated":"2026-01-01T00:00:00.000Z",${NOW},"healthy":true}`,
    );
    const before = `{"lastUpdated":"0001-01-01T00:00:00Z",${NOW}`;
    assert.deepEqual(proxyResponse('/healthz', health), {
      code: 503,
      headers: HEADERS,
      body: `${before},"nodeEligible":true,"healthy":true,"waitingFor":["Services from the API server 192.0.2.1:6443","Node \\"a\\""]}`,
    });
    missing.length = 0;
    assert.equal(
      proxyResponse('/healthz', health).body,
      `${before},"nodeEligible":true,"healthy":true,"waitingFor":["the start of the proxy mode"]}`,
    );
  });

  /** Status code and `waitingFor` of `/healthz`, and status code of `/livez`. */
  const outcome = (health: ProxyHealth) => {
    const { code, body } = proxyResponse('/healthz', health);
    return [code, JSON.parse(body).waitingFor, proxyResponse('/livez', health).code];
  };

  it('fails /healthz until each served family has synced once', () => {
    const { health, goTo } = build();
    health.begin(['IPv4', 'IPv6']);
    const [v4, v6] = ['the first sync of IPv4 rules', 'the first sync of IPv6 rules'];
    assert.deepEqual(outcome(health), [503, [v4, v6], 200]);
    for (const family of ['IPv4', 'IPv6'] as const) health.queued(family);
    health.updated('IPv4');
    assert.deepEqual(outcome(health), [503, [v6], 200]);
    goTo(1000);
    assert.deepEqual(
      outcome(health),
      [503, [v6], 503],
      'a first sync that keeps failing times out',
    );
    health.updated('IPv6');
    assert.deepEqual(outcome(health), [200, undefined, 200]);
    health.queued('IPv6');
    assert.deepEqual(outcome(health), [200, undefined, 200]);
  });

  it('waits for the only family of a single-stack node', () => {
    const { health } = build();
    health.begin(['IPv6']);
    assert.deepEqual(outcome(health), [503, ['the first sync of IPv6 rules'], 200]);
    health.updated('IPv6');
    assert.deepEqual(outcome(health), [200, undefined, 200]);
  });

  it('fails /healthz when a required Node does not exist', () => {
    const { health, missing } = build({ needsNode: true });
    missing.push('Node "a"');
    health.begin(['IPv4']);
    health.updated('IPv4');
    assert.deepEqual(outcome(health), [503, ['Node "a"'], 200]);
    health.setNode(node({}));
    missing.length = 0;
    assert.deepEqual(outcome(health), [200, undefined, 200]);
    health.setNode(undefined);
    assert.deepEqual(outcome(health), [503, undefined, 200], 'a deleted Node is not waited for');
  });
});

describe('response: a health check node port', () => {
  for (const [localEndpoints, healthy, code] of [
    [0, true, 503],
    [1, true, 200],
    [12, true, 200],
    [12, false, 503],
    [0, false, 503],
  ] as const) {
    it(`responds ${code} with ${localEndpoints} endpoints and ${healthy ? 'a healthy' : 'an unhealthy'} proxy`, () => {
      const health = {
        serviceKey: 'media/sip',
        family: 'IPv4',
        port: 30_000,
        localEndpoints,
        isOnlyFamily: false,
      } as const;
      assert.deepEqual(serviceResponse(health, healthy), {
        code,
        headers: { ...HEADERS, 'X-Load-Balancing-Endpoint-Weight': String(localEndpoints) },
        body: [
          '{',
          '\t"service": {',
          '\t\t"namespace": "media",',
          '\t\t"name": "sip"',
          '\t},',
          `\t"localEndpoints": ${localEndpoints},`,
          `\t"serviceProxyHealthy": ${healthy}`,
          '}',
        ].join('\n'),
      });
    });
  }
});
