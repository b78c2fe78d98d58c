import assert from 'node:assert/strict';
import { accessSync, constants } from 'node:fs';
import { join } from 'node:path';
import {
  type Job,
  makeTargets,
  ROOT,
  readText,
  readYaml,
  targetsOf,
  WORKFLOWS,
  type Workflow,
} from './read.ts';

describe('workflows', () => {
  it('are ci, nightly and release', () => {
    assert.deepEqual(
      WORKFLOWS.map((path) => readYaml<Workflow>(path).name),
      ['ci', 'nightly', 'release'],
    );
  });

  for (const path of WORKFLOWS) {
    const text = readText(path);
    const { name, permissions, concurrency, jobs } = readYaml<Workflow>(path);
    const all = Object.entries(jobs) as [string, Job][];
    const steps = all.flatMap(([, job]) => job.steps ?? []);

    describe(path, () => {
      it('grants nothing by default, and each job what it lists', () => {
        assert.deepEqual(permissions, {});
        for (const [job, granted] of all.map(([key, each]) => [key, each.permissions] as const)) {
          const writes = Object.values(granted ?? { none: 'write' }).includes('write');
          assert.equal(writes, job === 'publish', job);
        }
      });

      it('runs no code of packages in a job that may write', () => {
        for (const [, job] of all) {
          if (!Object.values(job.permissions ?? {}).includes('write')) continue;
          assert.deepEqual(targetsOf(job), []);
          assert.doesNotMatch(JSON.stringify(job.steps), /npm|actions\/checkout|scripts\//);
        }
      });

      it('pins each action by commit, with the version in a comment', () => {
        const uses = [...text.matchAll(/uses: (.*)$/gm)].map(([, use = '']) => use);
        assert.ok(uses.length > 0);
        for (const use of uses.filter((each) => !each.startsWith('./'))) {
          assert.match(use, /^[\w-]+\/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/);
        }
      });

      it('leaves no credentials in the checkout', () => {
        for (const step of steps.filter(({ uses = '' }) => uses.startsWith('actions/checkout@'))) {
          assert.equal(step.with?.['persist-credentials'], false);
        }
      });

      it('has a time limit for each job', () => {
        for (const [job, { uses, 'timeout-minutes': minutes = 0 }] of all) {
          if (uses === undefined) assert.ok(minutes > 0 && minutes <= 120, job);
        }
      });

      // A called workflow has the name of its caller: a group with that name would wait for itself.
      it('has a concurrency group of its own', () => {
        assert.equal(concurrency.group, `${name}-\${{ github.ref }}`);
      });

      it('runs only targets of the Makefile', () => {
        const known = new Set(makeTargets());
        const targets = all.flatMap(([, job]) => targetsOf(job));
        assert.ok(targets.length > 0);
        assert.deepEqual(
          targets.filter((target) => !known.has(target)),
          [],
        );
      });

      it('runs only scripts that exist', () => {
        const runs = steps.map(({ run = '' }) => run).join('\n');
        for (const [script] of runs.matchAll(/scripts\/[\w.-]+/g)) {
          accessSync(join(ROOT, script), constants.X_OK);
        }
      });

      it('passes names of tags and branches to shells only in variables', () => {
        for (const { run = '' } of steps) assert.doesNotMatch(run, /\$\{\{ *github\./);
      });
    });
  }

  it('run lint, unit tests on two architectures, and the tests with packets, also in stock kernels', () => {
    const { jobs } = readYaml<Workflow>('.github/workflows/ci.yml');
    const targets = Object.values(jobs).flatMap((job) => targetsOf(job));
    assert.deepEqual(targets.sort(), ['audit', 'coverage', 'lint', 'test', 'test-kernels', 'unit']);
  });
});
