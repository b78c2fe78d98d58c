/** Sections of CHANGELOG.md (https://keepachangelog.com/en/1.1.0/). */

const UNRELEASED = '## [Unreleased]\n';

/** The text below the heading `## [name]`, up to the next section; undefined without such a heading. */
export function changelogSection(changelog: string, name: string): string | undefined {
  for (const part of changelog.split(/^## /m).slice(1)) {
    if (part.startsWith(`[${name}]`)) return part.slice(part.indexOf('\n') + 1).trim();
  }
  return undefined;
}

/** Makes the section Unreleased the section of a version, and adds an empty one above. */
export function releaseSection(changelog: string, version: string, date: string): string {
  return changelog.replace(UNRELEASED, `${UNRELEASED}\n## [${version}] - ${date}\n`);
}
