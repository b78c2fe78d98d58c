/** All steps of a run, in order. */
import { join } from 'node:path';
import { certificateSteps } from './certificates.ts';
import { controlPlaneSteps, readySteps } from './control-plane.ts';
import { corednsSteps } from './coredns.ts';
import type { Layout } from './layout.ts';
import { networkSteps } from './network.ts';
import { nodeSteps, proxySteps, removeProxySteps } from './node.ts';
import { type ClusterOptions, type Mode, skipFor } from './options.ts';
import { run, type Step } from './steps.ts';

export interface Plan {
  readonly cluster: readonly Step[];
  readonly modes: readonly ModePlan[];
}

export interface ModePlan {
  readonly mode: Mode;
  readonly start: readonly Step[];
  readonly test: readonly Step[];
  readonly stop: readonly Step[];
  /** Directory of its JUnit files. */
  readonly report: string;
}

export interface Surroundings {
  readonly layout: Layout;
  /** This checkout. */
  readonly root: string;
  readonly cni: string;
  readonly archives: readonly string[];
}

export function planRun(options: ClusterOptions, surroundings: Surroundings): Plan {
  const { layout, root } = surroundings;
  const portwide = join(root, 'portwide');
  const settings = { ...surroundings, pauseImage: options.pauseImage };
  return {
    cluster: [
      ...certificateSteps(layout),
      ...networkSteps(layout),
      ...controlPlaneSteps(layout),
      ...layout.nodes.flatMap((node) => nodeSteps(node, settings)),
      ...readySteps(layout, join(root, 'deploy')),
      ...(options.corednsImage === '' ? [] : corednsSteps(layout, options.corednsImage)),
    ],
    modes: options.modes.map((mode) => {
      const report = join(options.report, mode);
      return {
        mode,
        report,
        start: proxySteps(mode, layout, portwide),
        test: [run('machine', 'mkdir', '-p', report), testStep(mode, report, options, layout)],
        stop: removeProxySteps(mode, layout, portwide),
      };
    }),
  };
}

function testStep(mode: Mode, report: string, options: ClusterOptions, layout: Layout): Step {
  return {
    kind: 'test',
    on: 'control',
    name: `e2e-${mode}`,
    command: [
      'e2e.test',
      `--kubeconfig=${join(layout.directory, 'admin.kubeconfig')}`,
      `--report-dir=${report}`,
      `--num-nodes=${layout.nodes.length}`,
      '--disable-log-dump',
      `--ginkgo.focus=${options.focus}`,
      `--ginkgo.skip=${skipFor(mode, options.skip)}`,
      '--ginkgo.no-color',
      '--ginkgo.timeout=24h',
    ],
  };
}
