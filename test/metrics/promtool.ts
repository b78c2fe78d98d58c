import { execa } from 'execa';

/** Problems that `promtool check metrics` reports for a scrape, one per line. */
export async function promtoolProblems(text: string): Promise<string[]> {
  const { stdout, stderr } = await execa('promtool', ['check', 'metrics'], {
    input: text.endsWith('\n') ? text : `${text}\n`,
    reject: false,
  });
  return `${stdout}\n${stderr}`.split('\n').filter((line) => line !== '');
}

const SUFFIX = 'non-counter metrics should not have "_total" suffix';
/** Gauges to which kube-proxy gave names of counters; dashboards depend on these names. */
export const KUBE_PROXY_PROBLEMS = [
  `kubeproxy_sync_proxy_rules_iptables_total ${SUFFIX}`,
  `kubeproxy_sync_proxy_rules_no_local_endpoints_total ${SUFFIX}`,
];
