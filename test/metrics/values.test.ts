import assert from 'node:assert/strict';
import { mock } from 'node:test';
import { IptablesError } from '../../iptables/commands.ts';
import { NetlinkError } from '../../netlink/core/error.ts';
import { NftRefusedError } from '../../netlink/nftables/tables.ts';
import { ProgramTimeoutError } from '../../process/run-program.ts';
import { endpoint, podAt, service, servicePort, slice, upsertWithPods } from '../fixtures.ts';
import { fakeAgent } from './agent.ts';

const V4 = { ip_family: 'IPv4' };
const V6 = { ip_family: 'IPv6' };
const START = Date.UTC(2026, 0, 1);
const seconds = (time: number) => time / 1000;

describe('values: metric values', () => {
  it('reports state of other modes that remains, with the reason', async () => {
    const { remaining, scrape } = fakeAgent();
    const values = async () => {
      const scraped = await scrape();
      const of = (what: string, reason: string) =>
        scraped.value('portwide_takeover_remaining', { what, reason });
      return [
        of('ipvs', 'connections'),
        of('ipvs', 'error'),
        of('iptables', 'error'),
        scraped.value('portwide_takeover_connections', {}),
      ];
    };
    assert.deepEqual(await values(), [0, 0, 0, 0]);
    remaining.push({ what: 'ipvs', reason: 'connections', connections: 21 });
    // One for each family.
    for (let family = 0; family < 2; family++) {
      remaining.push({ what: 'iptables', reason: 'error', connections: 0 });
    }
    assert.deepEqual(await values(), [1, 0, 1, 21]);
    remaining.length = 0;
    assert.deepEqual(await values(), [0, 0, 0, 0]);
  });

  it('reports a pending restart after a change of the configuration file, and counts such changes', async () => {
    const { config, scrape } = fakeAgent();
    const values = async () => {
      const scraped = await scrape();
      return [
        scraped.value('portwide_config_restart_pending', {}),
        ...['accepted', 'unusable', 'cancelled'].map((result) =>
          scraped.value('portwide_config_changes_total', { result }),
        ),
      ];
    };
    assert.deepEqual(await values(), [0, 0, 0, 0]);
    config.changes = { isPending: true, counts: { accepted: 3, unusable: 2, cancelled: 1 } };
    assert.deepEqual(await values(), [1, 3, 2, 1]);
  });

  it('reports enabled feature gates', async () => {
    const scraped = await fakeAgent().scrape();
    const isOn = (name: string) =>
      scraped.value('kubernetes_feature_enabled', { name, stage: 'BETA' });
    assert.deepEqual([isOn('AllPorts'), isOn('ComponentFlagz')], [1, 0]);
  });

  beforeEach(() => mock.timers.enable({ apis: ['Date'], now: START }));
  afterEach(() => mock.timers.reset());

  it('measures full and partial syncs separately', async () => {
    const { backends, table, pass, start, scrape } = fakeAgent({ conntrackMs: 30 });
    backends[0].takes = 200;
    table.upsert(service({ portsAnnotation: 'all' }));
    await start();
    const counts = async () => {
      const scraped = await scrape();
      return ['', 'full_', 'partial_'].map((kind) =>
        scraped.value(`kubeproxy_sync_${kind}proxy_rules_duration_seconds_count`, V4),
      );
    };
    assert.deepEqual(await counts(), [1, 1, undefined]);
    const first = await scrape();
    assert.equal(first.value('kubeproxy_sync_proxy_rules_duration_seconds_sum', V4), 0.23);
    assert.equal(first.value('portwide_backend_apply_duration_seconds_sum', V4), 0.2);
    assert.equal(first.value('kubeproxy_conntrack_reconciler_sync_duration_seconds_sum', V4), 0.03);
    table.upsert(slice([endpoint('10.0.0.1')]));
    await pass(0);
    assert.deepEqual(await counts(), [2, 1, 1]);
    backends[0].error = new Error('no');
    table.upsert(slice([]));
    await pass(1000);
    assert.deepEqual(await counts(), [3, 1, 2], 'a failed sync counts');
  });

  it('reports when a sync was queued and when one last succeeded', async () => {
    const { backends, table, pass, start, scrape } = fakeAgent();
    await start();
    const times = async () => {
      const scraped = await scrape();
      return [V4, V6].flatMap((labels) =>
        ['last_queued', 'last'].map((which) =>
          scraped.value(`kubeproxy_sync_proxy_rules_${which}_timestamp_seconds`, labels),
        ),
      );
    };
    assert.deepEqual(
      await times(),
      Array.from({ length: 4 }, () => seconds(START)),
    );
    const later = START + 60_000;
    mock.timers.setTime(later);
    backends[0].error = new Error('no');
    table.upsert(service());
    await pass(0);
    assert.deepEqual(await times(), [
      seconds(later),
      seconds(START),
      seconds(later),
      seconds(later),
    ]);
  });

  it('measures network programming latency', async () => {
    const { backends, table, pass, start, scrape } = fakeAgent();
    table.upsert(service());
    await start();
    mock.timers.setTime(START + 10_000);
    backends[0].error = new Error('no');
    table.upsert(slice([endpoint('10.0.0.1')], { triggerTime: START + 9000 }));
    await pass(0);
    backends[0].error = undefined;
    mock.timers.setTime(START + 11_500);
    await pass(2000);
    // A clock slightly ahead of the agent's.
    table.upsert(slice([endpoint('10.0.0.2')], { triggerTime: START + 12_000 }));
    await pass(2000);
    const scraped = await scrape();
    const name = 'kubeproxy_network_programming_duration_seconds';
    assert.equal(scraped.value(`${name}_count`, V4), 2);
    assert.equal(scraped.value(`${name}_sum`, V4), 2.5);
    assert.equal(scraped.value(`${name}_bucket`, { ...V4, le: '2' }), 1);
    assert.equal(scraped.value(`${name}_count`, V6), undefined);
  });

  it('counts changes of objects, in total and pending', async () => {
    const { table, start, pass, scrape } = fakeAgent();
    const counts = async () => {
      const scraped = await scrape();
      return ['service', 'endpoint'].flatMap((kind) =>
        ['total', 'pending'].map((which) =>
          scraped.value(`kubeproxy_sync_proxy_rules_${kind}_changes_${which}`),
        ),
      );
    };
    table.upsert(service());
    assert.deepEqual(await counts(), [1, 1, 0, 0]);
    await start();
    assert.deepEqual(await counts(), [1, 0, 0, 0]);
    table.upsert(slice([]));
    table.upsert(slice([endpoint('10.0.0.1')]));
    assert.deepEqual(await counts(), [1, 0, 2, 2]);
    await pass(0);
    assert.deepEqual(await counts(), [1, 0, 2, 0]);
  });

  it('counts failures of iptables-restore from 0 on, and no other failures', async () => {
    const { backends, table, pass, start, scrape } = fakeAgent();
    const failures = async () => {
      const scraped = await scrape();
      return ['', 'partial_'].flatMap((kind) =>
        [V4, V6].map((labels) =>
          scraped.value(
            `kubeproxy_sync_proxy_rules_iptables_${kind}restore_failures_total`,
            labels,
          ),
        ),
      );
    };
    await start();
    assert.deepEqual(await failures(), [0, 0, 0, 0]);
    for (const [command, expected] of [
      ['iptables-nft-restore', [1, 0, 1, 0]],
      ['iptables-nft-save', [1, 0, 1, 0]],
      ['iptables-nft-restore', [2, 0, 1, 0]],
    ] as const) {
      backends[0].error = new IptablesError(command, 'busy', undefined, undefined);
      table.upsert(service({ name: `s${expected[0]}` }));
      await pass(60_000);
      assert.deepEqual(await failures(), expected, command);
    }
    backends[0].error = new ProgramTimeoutError('iptables-nft-restore', 'iptables-nft-restore', 1);
    table.upsert(service({ name: 'hung' }));
    await pass(60_000);
    assert.deepEqual(await failures(), [3, 0, 1, 0]);
  });

  it('counts failed nftables syncs from 0 on, and no other failures', async () => {
    const { backends, table, pass, start, scrape } = fakeAgent();
    const failures = async () => {
      const scraped = await scrape();
      return [V4, V6].map((labels) =>
        scraped.value('kubeproxy_sync_proxy_rules_nftables_sync_failures_total', labels),
      );
    };
    await start();
    assert.deepEqual(await failures(), [0, 0]);
    const busy = new NetlinkError('transaction', 16);
    for (const [error, expected] of [
      [new IptablesError('iptables-restore', 'busy', undefined, undefined), [0, 0]],
      [new NftRefusedError(busy), [1, 0]],
    ] as const) {
      backends[0].error = error;
      table.upsert(service({ name: error.name.toLowerCase() }));
      await pass(60_000);
      assert.deepEqual(await failures(), expected, error.name);
    }
  });

  it('reports the numbers of the backends', async () => {
    const { backends, table, pass, start, scrape } = fakeAgent({ deletedEntries: 3 });
    const [v4, v6] = backends;
    table.upsert(service({ portsAnnotation: 'all' }));
    v4.report = { written: 1, rulesWritten: new Map([['nat', 40]]) };
    v4.has = { rules: new Map([['nat', 70]]) };
    const elements = new Map([['endpoints', 8]]);
    v6.rejections = [
      ['UDP', 7],
      ['SCTP', 0],
    ];
    v6.has = { marks: { inUse: 5, waiting: 2 }, drainingVips: 3, elements, cleanupFailures: 1 };
    await start();
    const scraped = await scrape();
    const nat = { table: 'nat' };
    assert.equal(scraped.value('kubeproxy_sync_proxy_rules_iptables_total', { ...nat, ...V4 }), 70);
    assert.equal(scraped.value('kubeproxy_sync_proxy_rules_iptables_last', { ...nat, ...V4 }), 40);
    assert.equal(scraped.value('kubeproxy_sync_proxy_rules_iptables_total', V6), undefined);
    assert.equal(scraped.value('portwide_marks_in_use', V6), 5);
    assert.equal(scraped.value('portwide_marks_exhausted', V6), 2);
    assert.equal(scraped.value('portwide_marks_in_use', V4), undefined);
    const metric = 'portwide_draining_vips';
    assert.deepEqual([scraped.value(metric, V6), scraped.value(metric, V4)], [3, undefined]);
    const map = { map: 'endpoints' };
    assert.equal(scraped.value('portwide_nftables_elements', { ...map, ...V6 }), 8);
    assert.equal(scraped.value('portwide_nftables_elements', V4), undefined);
    const failures = 'kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total';
    assert.deepEqual([scraped.value(failures, V6), scraped.value(failures, V4)], [1, undefined]);
    const rejected = 'kubeproxy_nftables_localhost_nodeport_rejected_packets_total';
    assert.equal(scraped.value(rejected, { ...V6, protocol: 'UDP' }), 7);
    assert.equal(scraped.value(rejected, { ...V6, protocol: 'SCTP' }), 0);
    assert.equal(scraped.value(rejected, V4), undefined);
    const deleted = 'kubeproxy_conntrack_reconciler_deleted_entries_total';
    assert.deepEqual([scraped.value(deleted, V4), scraped.value(deleted, V6)], [3, 0]);
    v4.report = { written: 0, rulesWritten: new Map([['nat', 0]]) };
    table.upsert(slice([endpoint('10.0.0.1')]));
    await pass(0);
    const after = await scrape();
    assert.equal(after.value('kubeproxy_sync_proxy_rules_iptables_last', { ...nat, ...V4 }), 0);
  });

  it('counts slices of owned ports over all ranges, by whether an owner serves them', async () => {
    const { table, start, scrape } = fakeAgent();
    const owned = {
      ownedPortsAnnotation: '20000-20999/UDP,30000-30399/TCP',
      portsPerPodAnnotation: '100',
    };
    table.upsert(service({ name: 'a', clusterIPs: ['10.96.0.1', 'fd00::1'], ...owned }));
    table.upsert(service({ name: 'b', clusterIPs: ['10.96.0.2'], ...owned }));
    const owners = [
      endpoint('10.0.0.1', { ordinal: 0 }),
      endpoint('10.0.0.5', { ordinal: 5, nodeName: 'node-b' }),
      endpoint('10.0.0.6', { ordinal: 6, ready: false, serving: false }),
    ];
    upsertWithPods(table, slice(owners, { name: 'a-1', serviceKey: 'default/a', ports: [] }));
    await start();
    const slices = async () => {
      const scraped = await scrape();
      return [V4, V6].flatMap((family) =>
        ['served', 'vacant'].map((state) =>
          scraped.value('portwide_owned_slices', { state, ...family }),
        ),
      );
    };
    assert.deepEqual(await slices(), [3, 25, 0, 14]);
    table.remove('Service', 'default/a');
    table.takeChanges();
    assert.deepEqual(await slices(), [0, 14, 0, 0]);
  });

  it('counts endpoints that own no ports by reason', async () => {
    const { table, start, scrape } = fakeAgent();
    table.upsert(
      service({ ownedPortsAnnotation: '20000-20999/UDP', portsPerPodAnnotation: '100' }),
    );
    table.upsert(slice([endpoint('10.0.0.1', { ordinal: 0 }), endpoint('10.0.0.2')]));
    table.upsert(podAt('10.0.0.2'));
    await start();
    const counts = async () => {
      const scraped = await scrape();
      return ['NoPod', 'HostNetwork', 'NoOrdinal'].map((reason) =>
        scraped.value('portwide_endpoints_without_owned_ports', { reason }),
      );
    };
    assert.deepEqual(await counts(), [1, 0, 1]);
    table.upsert(podAt('10.0.0.1'));
    table.takeChanges();
    assert.deepEqual(await counts(), [0, 0, 1]);
  });

  it('counts Services and Routes by kind', async () => {
    const { table, refusalChanges, start, scrape } = fakeAgent();
    table.upsert(
      service({ name: 'all', portsAnnotation: 'all', clusterIPs: ['10.96.0.1', 'fd00::1'] }),
    );
    table.upsert(service({ name: 'some', portsAnnotation: '80-90', clusterIPs: ['10.96.0.2'] }));
    table.upsert(
      service({
        name: 'listed',
        clusterIPs: ['10.96.0.3'],
        internalTrafficPolicy: 'Local',
        ports: [servicePort({ name: 'a', port: 1 }), servicePort({ name: 'b', port: 2 })],
      }),
    );
    table.upsert(
      slice([endpoint('10.0.0.1', { nodeName: 'node-b' })], {
        serviceKey: 'default/listed',
        ports: [
          { name: 'a', protocol: 'TCP', port: 1 },
          { name: 'b', protocol: 'TCP', port: 2 },
        ],
      }),
    );
    const bad = { portsAnnotation: 'all', type: 'NodePort', externalIPs: ['192.0.2.9'] } as const;
    table.upsert(service({ name: 'bad', ...bad }));
    table.upsert(service({ name: 'worse', ...bad }));
    await start();
    const scraped = await scrape();
    const services = (kind: string) => scraped.value('portwide_all_ports_services', { kind });
    assert.deepEqual([services('all'), services('ranges')], [1, 1]);
    const routes = (kind: string, labels: object) =>
      scraped.value('portwide_routes', { kind, ...labels });
    assert.deepEqual(
      ['port', 'ranges', 'all'].map((kind) => [routes(kind, V4), routes(kind, V6)]),
      [
        [2, 0],
        [1, 0],
        [1, 1],
      ],
    );
    const refused = (reason: string) => scraped.value('portwide_refused_services', { reason });
    assert.deepEqual([refused('NodePort'), refused('ExternalIPs'), refused('Ports')], [2, 2, 0]);
    const withoutLocalEndpoints = (policy: string) =>
      scraped.value('kubeproxy_sync_proxy_rules_no_local_endpoints_total', {
        traffic_policy: policy,
        ...V4,
      });
    assert.deepEqual(
      [withoutLocalEndpoints('internal'), withoutLocalEndpoints('external')],
      [2, 0],
    );
    assert.equal(scraped.value('portwide_build_info', { version: '1.2.3' }), 1);
    assert.equal(refusalChanges.flatMap(({ raised }) => raised).length, 4);
  });
});
