import assert from 'node:assert/strict';
import { proxyAnswer, serviceAnswer } from '../../health/answer.ts';
import { ProxyHealth } from '../../health/proxy-health.ts';

const HEADERS = { 'Content-Type': 'application/json', 'X-Content-Type-Options': 'nosniff' };

/** A proxy at a moment of time, in milliseconds since the start. */
function build() {
  let now = 0;
  const health = new ProxyHealth({
    timeout: 1000,
    clock: { wall: () => new Date(Date.UTC(2026, 0, 1) + now), elapsed: () => now },
  });
  return {
    health,
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

describe('/healthz and /livez', () => {
  it('healthy: updated just now, whenever that was', () => {
    const { health, goTo } = build();
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
    assert.deepEqual(proxyAnswer('/healthz', health), {
      code: 200,
      headers: HEADERS,
      body: `${times}"nodeEligible":true,${rest}`,
    });
    assert.deepEqual(proxyAnswer('/livez', health), {
      code: 200,
      headers: HEADERS,
      body: `${times}${rest}`,
    });
  });

  it('unhealthy: when it last was in sync', () => {
    const { health, goTo } = build();
    for (const family of ['IPv4', 'IPv6'] as const) health.updated(family);
    goTo(500);
    health.updated('IPv6');
    health.queued('IPv4');
    goTo(1500);
    for (const [path, eligible] of [
      ['/healthz', '"nodeEligible":true,'],
      ['/livez', ''],
    ] as const) {
      assert.deepEqual(proxyAnswer(path, health), {
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

  it('not eligible: /healthz is bad though the proxy is healthy, /livez is good', () => {
    const { health, goTo } = build();
    health.updated('IPv4');
    goTo(5000);
    health.setNode(node({ taints: ['ToBeDeletedByClusterAutoscaler'] }));
    const { code, body } = proxyAnswer('/healthz', health);
    assert.equal(code, 503);
    assert.deepEqual(JSON.parse(body), {
      lastUpdated: '2026-01-01T00:00:00.000Z',
      currentTime: '2026-01-01T00:00:05.000Z',
      nodeEligible: false,
      healthy: true,
      status: { IPv4: { lastUpdated: '2026-01-01T00:00:00.000Z', healthy: true } },
    });
    assert.equal(proxyAnswer('/livez', health).code, 200);
  });

  it('before it begins there is no status, and no time of a sync', () => {
    const { health } = build();
    const now = '"currentTime":"2026-01-01T00:00:00.000Z"';
    assert.equal(
      proxyAnswer('/livez', health).body,
      `{"lastUpdated":"2026-01-01T00:00:00.000Z",${now},"healthy":true}`,
    );
    health.setNode(node({ deleting: true }));
    assert.deepEqual(proxyAnswer('/healthz', health), {
      code: 503,
      headers: HEADERS,
      body: `{"lastUpdated":"0001-01-01T00:00:00Z",${now},"nodeEligible":false,"healthy":true}`,
    });
  });
});

describe('a health check node port', () => {
  for (const [localEndpoints, healthy, code] of [
    [0, true, 503],
    [1, true, 200],
    [12, true, 200],
    [12, false, 503],
    [0, false, 503],
  ] as const) {
    it(`${localEndpoints} endpoints, proxy ${healthy ? 'healthy' : 'unhealthy'}: ${code}`, () => {
      const health = {
        serviceKey: 'media/sip',
        family: 'IPv4',
        port: 30_000,
        localEndpoints,
      } as const;
      assert.deepEqual(serviceAnswer(health, healthy), {
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
