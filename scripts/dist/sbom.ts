/** Software bill of materials in CycloneDX 1.6: https://cyclonedx.org/docs/1.6/json/. */
import { createHash } from 'node:crypto';
import { VERSION } from '../../process/version.ts';
import { DEPENDS } from './deb.ts';
import {
  type Architecture,
  koffiBinaryPackage,
  koffiPackage,
  lockedPackageAt,
  type NpmPackage,
  nodePackage,
} from './npm-packages.ts';

/** A component of CycloneDX; `bom-ref` identifies it within the document. */
interface Component {
  readonly 'bom-ref': string;
}

/** What a document describes. */
export interface Subject extends Component {
  readonly type: 'application' | 'container';
  readonly purl?: string;
}

/**
 * A document about `subject`, which consists of `components`.
 *
 * @param date seconds since 1970
 */
export function billOfMaterials(
  subject: Subject,
  components: readonly Component[],
  date: number,
): string {
  const unique = [...new Map(components.map((each) => [each['bom-ref'], each])).values()].sort(
    (one, other) => (one['bom-ref'] < other['bom-ref'] ? -1 : 1),
  );
  const content = {
    metadata: {
      timestamp: new Date(date * 1000).toISOString().replace('.000Z', 'Z'),
      component: {
        ...subject,
        name: 'portwide',
        version: VERSION,
        licenses: [{ license: { id: 'Apache-2.0' } }],
      },
    },
    components: unique,
    dependencies: [{ ref: subject['bom-ref'], dependsOn: unique.map((each) => each['bom-ref']) }],
  };
  const head = {
    bomFormat: 'CycloneDX',
    specVersion: '1.6',
    serialNumber: `urn:uuid:${uuidOf(JSON.stringify(content))}`,
    version: 1,
  };
  return `${JSON.stringify({ ...head, ...content }, null, 2)}\n`;
}

/** The document about tar.gz files and packages: their content, and the Debian packages they need. */
export function packagesBill(
  bundled: readonly string[],
  architectures: readonly Architecture[],
  date: number,
): string {
  const purl = `pkg:npm/portwide@${VERSION}`;
  const components = [
    ...agentComponents(bundled, architectures),
    ...DEPENDS.map(dependencyComponent),
  ];
  return billOfMaterials({ type: 'application', 'bom-ref': purl, purl }, components, date);
}

/**
 * What each installation contains: the packages in the bundle, Node.js and koffi. `npm sbom` would
 * list all packages in package-lock.json, though most are not bundled.
 *
 * @param bundled paths of packages, such as `node_modules/yaml`
 */
export function agentComponents(
  bundled: readonly string[],
  architectures: readonly Architecture[],
): Component[] {
  const binaries = architectures.flatMap((arch) => [koffiBinaryPackage(arch), nodePackage(arch)]);
  const npm = [...bundled.map(lockedPackageAt), koffiPackage(), ...binaries].map(npmComponent);
  return [...npm, nodeComponent(architectures)];
}

function npmComponent({ name, version, integrity, license }: NpmPackage) {
  const purl = `pkg:npm/${name.replace('@', '%40')}@${version}`;
  const hash = Buffer.from(integrity.replace('sha512-', ''), 'base64').toString('hex');
  return {
    type: 'library',
    'bom-ref': purl,
    name,
    version,
    licenses: [/[ (]/.test(license) ? { expression: license } : { license: { id: license } }],
    purl,
    externalReferences: [
      {
        type: 'distribution',
        url: `https://registry.npmjs.org/${name}/-/${name.replace(/^.*\//, '')}-${version}.tgz`,
        hashes: [{ alg: 'SHA-512', content: hash }],
      },
    ],
  };
}

/** Scanners know vulnerabilities of Node.js by its CPE, not by the npm package with its binary. */
function nodeComponent([arch = 'amd64']: readonly Architecture[]) {
  const { version } = nodePackage(arch);
  return {
    type: 'platform',
    'bom-ref': `pkg:generic/node@${version}`,
    name: 'node',
    version,
    cpe: `cpe:2.3:a:nodejs:node.js:${version}:*:*:*:-:*:*:*`,
    purl: `pkg:generic/node@${version}`,
  };
}

/** A package that the Debian package depends on; the node decides its version. */
function dependencyComponent(dependency: string) {
  const [name = '', range] = dependency.split(/ \(|\)/);
  const needed = { name: 'portwide:debian:depends', value: dependency };
  return {
    type: 'library',
    'bom-ref': `pkg:deb/debian/${name}`,
    name,
    purl: `pkg:deb/debian/${name}`,
    ...(range === undefined ? {} : { properties: [needed] }),
  };
}

/** A UUID (version 8, RFC 9562) that depends only on the content. */
function uuidOf(content: string): string {
  const hex = createHash('sha256').update(content).digest('hex');
  const variant = '89ab'[Number.parseInt(hex.slice(16, 17), 16) % 4];
  const groups = [hex.slice(0, 8), hex.slice(8, 12), `8${hex.slice(13, 16)}`];
  return [...groups, `${variant}${hex.slice(17, 20)}`, hex.slice(20, 32)].join('-');
}
