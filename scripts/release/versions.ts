/** The places where the version of Portwide stands. */

/** Globs of files with the version, besides package.json and package-lock.json. */
export const VERSIONED_FILES = [
  'README.md',
  'CONTRIBUTING.md',
  'Containerfile',
  'docs/**/*.md',
  'deploy/**/*.yaml',
  '.github/ISSUE_TEMPLATE/bug.yml',
];

/**
 * Text before the version, so that versions of other programs, such as `nft 1.0.6`, do not change:
 * image tags, the manifest of the kubectl plugin, a Helm chart, commands, and sentences.
 */
const BEFORE = [
  'newTag: "?',
  '^ *(?:version|appVersion|tag): "?v?',
  '(?:Version|Portwide|portwide) v?',
  'portwide[:_-]',
  'git checkout v',
  'portwide[.]invalid/v',
];

/** Compares two versions `x.y.z`, as the comparator of a sort. */
export function compareVersions(a: string, b: string): number {
  const [left, right] = [a, b].map((version) => version.split('.').map(Number));
  for (const [index, number] of (left ?? []).entries()) {
    const other = right?.[index] ?? 0;
    if (number !== other) return number - other;
  }
  return 0;
}

/** Replaces one version by another where `text` means the version of Portwide. */
export function replaceVersion(text: string, old: string, version: string): string {
  const escaped = old.replaceAll('.', String.raw`\.`);
  const pattern = new RegExp(String.raw`(${BEFORE.join('|')})${escaped}(?![\d.]*\d)`, 'gm');
  return text.replace(pattern, (_match, before: string) => `${before}${version}`);
}

/** Sets the version in the text of package.json or package-lock.json. */
export function setPackageVersion(json: string, version: string): string {
  const content = JSON.parse(json) as {
    version: string;
    packages?: Record<string, { version: string }>;
  };
  content.version = version;
  const root = content.packages?.[''];
  if (root !== undefined) root.version = version;
  return `${JSON.stringify(content, null, 2)}\n`;
}
