/** Reads JUnit reports of e2e.test and compares modes in a Markdown table. */
import { isKubeProxy } from './options.ts';

/** What the tests of one mode gave. */
export interface ModeResult {
  readonly mode: string;
  readonly passed: readonly string[];
  readonly failed: readonly string[];
  /** Tests that skipped themselves. Tests outside the focus do not count. */
  readonly skipped: readonly string[];
  /** Why the tests did not run, or not to their end. */
  readonly error?: string;
}

type Counts = Pick<ModeResult, 'passed' | 'failed' | 'skipped'>;

/** @param document XML as Ginkgo's reporters.GenerateJUnitReport writes it. */
export function readJunit(document: string): Counts {
  const counts = { passed: [] as string[], failed: [] as string[], skipped: [] as string[] };
  // Attributes have no ">": Go's encoder writes &gt;.
  for (const [, attributes = '', , content = ''] of document.matchAll(
    /<testcase\b([^>]*?)(\/>|>([\s\S]*?)<\/testcase>)/g,
  )) {
    const label = decode(/\bname="([^"]*)"/.exec(attributes)?.[1] ?? '');
    const name = label.replace(/^\[It\] /, '');
    const skipped = /<skipped message="([^"]*)"/.exec(content)?.[1];
    if (/<(failure|error)[ >]/.test(content)) counts.failed.push(name);
    // Without a reason, Ginkgo skipped the test because of the focus.
    else if (skipped !== undefined) skipped.includes(' - ') && counts.skipped.push(name);
    // Not suite nodes such as [SynchronizedBeforeSuite], unless they fail.
    else if (label !== name) counts.passed.push(name);
  }
  return counts;
}

/** Tests that fail in a mode of Portwide but with no kube-proxy, as `<mode>: <test>`. */
export function regressions(results: readonly ModeResult[]): string[] {
  return results.flatMap(({ mode, failed }) =>
    failed.filter((name) => !failsWithKubeProxy(name, results)).map((name) => `${mode}: ${name}`),
  );
}

/** A row per mode, then the names of failed tests. */
export function renderTable(title: string, results: readonly ModeResult[]): string {
  const rows = results.map(
    ({ mode, passed, failed, skipped, error }) =>
      `| ${mode} | ${passed.length} | ${failed.length} | ${skipped.length} | ${inCell(error ?? '')} |`,
  );
  const failed = [...new Set(results.flatMap((result) => result.failed))].sort();
  const failures = failed.map((name) => {
    const modes = results.filter((result) => result.failed.includes(name)).map(({ mode }) => mode);
    return `| ${inCell(name)} | ${modes.join(', ')} | ${failsWithKubeProxy(name, results) ? 'yes' : 'no'} |`;
  });
  return [
    title,
    '',
    '| mode | passed | failed | skipped | error |',
    '|---|---:|---:|---:|---|',
    ...rows,
    ...(failures.length === 0
      ? []
      : ['', '| failed test | modes | fails with kube-proxy |', '|---|---|---|', ...failures]),
    '',
  ].join('\n');
}

function failsWithKubeProxy(name: string, results: readonly ModeResult[]): boolean {
  return results.some(({ mode, failed }) => isKubeProxy(mode) && failed.includes(name));
}

function inCell(text: string): string {
  return text.replaceAll('|', String.raw`\|`).replaceAll('\n', ' ');
}

const ENTITIES: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"' };

function decode(text: string): string {
  return text.replace(/&(?:#x([0-9A-Fa-f]+)|#(\d+)|(\w+));/g, (all, hex, decimal, name) => {
    if (name !== undefined) return ENTITIES[name] ?? all;
    return String.fromCodePoint(hex === undefined ? Number(decimal) : Number.parseInt(hex, 16));
  });
}
