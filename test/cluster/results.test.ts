import assert from 'node:assert/strict';
import { type ModeResult, readJunit, regressions, renderTable } from './results.ts';

/** As Ginkgo 2.21 writes it. */
const JUNIT = `<?xml version="1.0" encoding="UTF-8"?>
  <testsuites tests="7" disabled="3" errors="1" failures="1" time="9.5">
      <testsuite name="Kubernetes e2e suite" package="/src" tests="7" errors="1" failures="1">
          <properties>
              <property name="FocusStrings" value="\\[sig-network\\] Services"></property>
          </properties>
          <testcase name="[SynchronizedBeforeSuite]" classname="Kubernetes e2e suite" status="passed" time="0.1">
          </testcase>
          <testcase name="[It] [sig-network] Services serves &#34;A&#34; &amp; B" classname="Kubernetes e2e suite" status="passed" time="2"></testcase>
          <testcase name="[It] [sig-network] Services is reached | by node port" classname="Kubernetes e2e suite" status="failed" time="3">
              <failure message="" type="failed">timed out &lt;testcase&gt;</failure>
              <system-err>&gt; Enter</system-err>
          </testcase>
          <testcase name="[It] [sig-network] Services panics" classname="Kubernetes e2e suite" status="panicked" time="3">
              <error message="nil" type="panicked">nil</error>
          </testcase>
          <testcase name="[It] [sig-network] Services needs a cloud" classname="Kubernetes e2e suite" status="skipped" time="0.1">
              <skipped message="skipped - Only supported for providers [gce] (not local)"></skipped>
          </testcase>
          <testcase name="[It] [sig-node] not in focus" classname="Kubernetes e2e suite" status="skipped" time="0">
              <skipped message="skipped"></skipped>
          </testcase>
          <testcase name="[ReportAfterSuite] Kubernetes e2e suite report" classname="x" status="passed" time="0"/>
      </testsuite>
  </testsuites>`;

const result = (mode: string, failed: string[] = []): ModeResult => ({
  mode,
  passed: ['passes'],
  failed,
  skipped: [],
});

describe('readJunit', () => {
  it('reads passed, failed and skipped tests of e2e.test', () => {
    assert.deepEqual(readJunit(JUNIT), {
      passed: ['[sig-network] Services serves "A" & B'],
      failed: ['[sig-network] Services is reached | by node port', '[sig-network] Services panics'],
      skipped: ['[sig-network] Services needs a cloud'],
    });
  });

  it('counts a failed set-up of the suite', () => {
    const document =
      '<testcase name="[BeforeSuite]" status="failed"><failure message="" type="failed">no</failure></testcase>';
    assert.deepEqual(readJunit(document).failed, ['[BeforeSuite]']);
  });
});

describe('renderTable', () => {
  it('says for each failed test whether kube-proxy fails it too', () => {
    const { error: _, ...started } = result('iptables');
    const table = renderTable('Kubernetes', [
      result('kube-proxy-iptables', ['shared']),
      result('nftables', ['shared', 'a | b']),
      { ...started, passed: [], error: 'portwide exited: 1\nno nft' },
    ]);
    assert.equal(
      table,
      String.raw`Kubernetes

| mode | passed | failed | skipped | error |
|---|---:|---:|---:|---|
| kube-proxy-iptables | 1 | 1 | 0 |  |
| nftables | 1 | 2 | 0 |  |
| iptables | 0 | 0 | 0 | portwide exited: 1 no nft |

| failed test | modes | fails with kube-proxy |
|---|---|---|
| a \| b | nftables | no |
| shared | kube-proxy-iptables, nftables | yes |
`,
    );
  });

  it('leaves out the table of failures if there are none', () => {
    assert.doesNotMatch(renderTable('', [result('nftables')]), /failed test/);
  });
});

describe('regressions', () => {
  it('lists failures of Portwide that no kube-proxy has', () => {
    const results = [
      result('kube-proxy-iptables', ['shared', 'theirs']),
      result('nftables', ['shared', 'ours']),
    ];
    assert.deepEqual(regressions(results), ['nftables: ours']);
  });
});
