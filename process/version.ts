/** The version of this program, for users and for Kubernetes API fields. */
import { readFileSync } from 'node:fs';
import { arch } from 'node:os';

/** Version of the package, from package.json. */
export const VERSION: string = (() => {
  const text = readFileSync(new URL('../package.json', import.meta.url), 'utf8');
  const { version } = JSON.parse(text) as { version: string };
  return version;
})();

/** Go's architecture names where they differ from Node's. */
const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'amd64', ia32: '386' };

/**
 * Fields of the Kubernetes type `version.Info`; empty if not applicable.
 * @param version Version of the package, such as `0.1.0`.
 */
export function buildInfo(version: string) {
  const [major = '', minor = ''] = version.split('.');
  const architecture = arch();
  return {
    major,
    minor,
    gitVersion: `v${version}`,
    gitCommit: '',
    gitTreeState: '',
    buildDate: '',
    goVersion: '',
    compiler: `node ${process.version}`,
    platform: `${process.platform}/${ARCHITECTURES[architecture] ?? architecture}`,
  };
}
