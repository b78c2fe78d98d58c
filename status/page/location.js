/** The state of the page is in the fragment of its address, so links, bookmarks and the back button work. Pure. */

/**
 * @typedef {object} PageLocation
 * @property {string} page `node`, `services`, `service` and so on.
 * @property {readonly string[]} path further parts, such as namespace and name.
 * @property {URLSearchParams} query
 */

/** @param {string} fragment such as `#/services/default/web?step=match` @returns {PageLocation} */
export function parseLocation(fragment) {
  const [path = '', query = ''] = fragment.replace(/^#\/?/, '').split('?', 2);
  const [page = '', ...rest] = path.split('/').map(decode);
  const isService = page === 'services' && rest.length === 2;
  return {
    page: isService ? 'service' : page === '' ? 'node' : page,
    path: rest,
    query: new URLSearchParams(query),
  };
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** @param {string} service `namespace/name` @param {Readonly<Record<string, string>>} [query] */
export function serviceLink(service, query = {}) {
  return link(`services/${service.split('/').map(encodeURIComponent).join('/')}`, query);
}

/** A link without parameters that are empty. @param {string} path @param {Readonly<Record<string, string>>} [query] */
export function link(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== '');
  const text = new URLSearchParams(given).toString();
  return `#/${path}${text === '' ? '' : `?${text}`}`;
}
